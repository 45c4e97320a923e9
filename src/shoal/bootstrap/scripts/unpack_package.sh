# shellcheck shell=sh
# Unpacks the zip archive on standard input into DIRECTORY, completely or not at all.
#
#   unpack_package.sh DIRECTORY PYTHON
set -e
directory=$1 python=$2
mkdir -p "${directory%/*}"
rm -rf "$directory.new" "$directory.zip"
cat > "$directory.zip"
"$python" -m zipfile -e "$directory.zip" "$directory.new"
rm -f "$directory.zip"
mv "$directory.new" "$directory"
