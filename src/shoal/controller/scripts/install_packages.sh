#!/bin/sh
# Usage: install_packages PYTHON DIRECTORY PACKAGE...
# Installs Python packages where only the controller finds them. A package that the head has
# already is used as it is. The module of a package with a dash, such as google-auth, has a dot.
python=$1
directory=$2
shift 2
for package in "$@"; do
  module=$(echo "$package" | tr - .)
  "$python" -c "import $module" 2> /dev/null ||
    "$python" -m pip install --quiet --target "$directory" "$package" || exit
done
