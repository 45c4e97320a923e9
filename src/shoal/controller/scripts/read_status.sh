#!/bin/sh
# Usage: read_status DIRECTORY MAX_POLLS LOG_LINES
# Prints what print_status.sh prints, and the controller's status. With MAX_POLLS above 0, first
# waits, so many times 0.05 s, for a status that is newer than the config, or for repeated restarts.
# Needs print_status.sh.
directory=$1 polls=$2 log_lines=$3
cd "$directory" 2> /dev/null || exit 0
while [ "$polls" -gt 0 ] && [ -e config.json ]; do
  [ -z "$(find state.json -newer config.json 2> /dev/null)" ] || break
  [ "$(wc -l 2> /dev/null < restarts || echo 0)" -le 3 ] || break
  polls=$((polls - 1))
  sleep 0.05
done
print_status "$log_lines"
[ ! -e state.json ] || { printf 'state ' && cat state.json; }
