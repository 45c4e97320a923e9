#!/bin/sh
# Usage: prepare_controller PYTHON VERSION PACKAGE_DIRECTORY SECONDS
# Starts a supervisor that loads the controller and then waits SECONDS for a config: loading takes
# seconds in which workers still start. Does nothing after an upgrade, when `deploy_controller`
# replaces what runs.
python=$1
version=$2
package=$3
seconds=$4
directory=.shoal/controller
if [ -n "$package" ]; then
  export PYTHONPATH="$HOME/$package:$PWD/.shoal/packages${PYTHONPATH:+:$PYTHONPATH}"
fi
mkdir -p "$directory" || exit
if [ -e "$directory/version" ] && [ "$(cat "$directory/version")" != "$version" ]; then
  exit 0
fi
echo "$version" > "$directory/version"
exec "$python" -m shoal.controller prepare "$directory" "$seconds"
