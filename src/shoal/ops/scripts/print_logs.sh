#!/bin/sh
# Usage: print_logs LINES SESSION_DIRECTORY FILE NODE
# Prints the last LINES lines of FILE, of the controller's log of the setup of NODE, and of Ray's
# daemons on this node. "-" leaves one of them out. If SESSION_DIRECTORY is empty, the running raylet
# tells which one is Ray's.
lines=$1
session=$2
file=$3
node=$4
if [ -z "$session" ]; then
  # shellcheck disable=SC2009  # pgrep cannot print a part of the command line
  session=$(ps -eo args | grep -o 'raylet .*--session_dir=[^ ]*' | sed 's/.*=//' | head -n 1)
  session=${session:-/tmp/ray/session_latest}
fi
for path in "$file" .shoal/controller/logs/"$node"-*.log \
  "$session/logs/gcs_server.err" "$session/logs/gcs_server.out" \
  "$session/logs/raylet.err" "$session/logs/raylet.out"; do
  if [ -s "$path" ]; then
    echo "==> $path <=="
    tail -n "$lines" "$path"
    echo
  fi
done
