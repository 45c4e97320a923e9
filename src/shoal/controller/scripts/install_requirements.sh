#!/bin/sh
# Usage: install_requirements PYTHON DIRECTORY REQUIREMENT...
# Installs pinned Python packages, and what they need and the head lacks, where only the controller
# finds them. Ray is never installed: the head's own must stay the one that is imported.
python=$1
directory=$2
shift 2
if [ "$(cat "$directory/.requirements" 2> /dev/null)" = "$*" ]; then
  exit 0
fi
ray=$("$python" -c 'import ray; print(ray.__version__)') || exit
report=$(mktemp) || exit
trap 'rm -f "$report"' EXIT
"$python" -m pip install --quiet --dry-run --report "$report" "$@" "ray==$ray" || exit
missing=$("$python" -c '
import json, sys

for package in json.load(open(sys.argv[1]))["install"]:
    data = package["metadata"]
    if data["name"].lower() != "ray":
        direct = package.get("is_direct") and package["download_info"]["url"]
        print(data["name"] + (" @ " + direct if direct else "==" + data["version"]))
' "$report") || exit
if [ -n "$missing" ]; then
  printf '%s\n' "$missing" > "$report"
  "$python" -m pip install --quiet --upgrade --no-deps --target "$directory" -r "$report" || exit
fi
mkdir -p "$directory" && echo "$*" > "$directory/.requirements"
