#!/bin/sh
# Usage: controller_command PYTHON COMMAND [OPTION]...
# Runs a controller command on the head with the newest uploaded Shoal. Does nothing on a head that
# never had a controller.
python=$1
command=$2
shift 2
test -d .shoal/controller || exit 0
# shellcheck disable=SC2012  # the directories are named by Shoal, and are sorted by time
newest=$(ls -td "$PWD"/.shoal/lib/*/ 2> /dev/null | head -n 1)
if [ -n "$newest" ]; then
  export PYTHONPATH="$newest:$PWD/.shoal/packages${PYTHONPATH:+:$PYTHONPATH}"
fi
exec "$python" -m shoal.controller "$command" .shoal/controller "$@"
