#!/bin/sh
# Usage: prepare_controller PYTHON VERSION PACKAGE_DIRECTORY [START_OPTION]... < config.json
# Starts the controller while workers still start: it loads, connects to Ray and to the hosts, and
# waits for `deploy_controller`. Does nothing after an upgrade, when `deploy_controller` replaces
# what runs.
python=$1
version=$2
package=$3
shift 3
directory=.shoal/controller
if [ -n "$package" ]; then
  export PYTHONPATH="$HOME/$package:$PWD/.shoal/packages${PYTHONPATH:+:$PYTHONPATH}"
fi
mkdir -p "$directory" || exit
if [ -e "$directory/version" ] && [ "$(cat "$directory/version")" != "$version" ]; then
  exit 0
fi
echo "$version" > "$directory/version"
cat > "$directory/config.json.new" || exit
mv "$directory/config.json.new" "$directory/prepared-config.json" || exit
exec "$python" -m shoal.controller start "$directory" "$@"
