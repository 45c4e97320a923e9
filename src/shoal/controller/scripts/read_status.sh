#!/bin/sh
# Usage: read_status DIRECTORY MAX_POLLS LOG_LINES
# Prints, each on a line with its name: the time, when the controller's heartbeat and config were
# written, when the supervisor restarted the controller (one line for each), the last lines of its
# log, and its status. All times are the head's, in seconds. With MAX_POLLS above 0, first waits,
# so many times 0.05 s, for a status that is newer than the config, or for repeated restarts.
directory=$1 polls=$2 log_lines=$3
cd "$directory" 2> /dev/null || exit 0
while [ "$polls" -gt 0 ] && [ -e config.json ]; do
  [ -z "$(find state.json -newer config.json 2> /dev/null)" ] || break
  [ "$(wc -l 2> /dev/null < restarts || echo 0)" -le 3 ] || break
  polls=$((polls - 1))
  sleep 0.05
done
echo "now $(date +%s)"
for name in heartbeat config.json; do
  [ ! -e "$name" ] || echo "$name $(date -r "$name" +%s)"
done
[ ! -e restarts ] || sed 's/^/restart /' restarts
[ ! -e controller.log ] || tail -n "$log_lines" controller.log | sed 's/^/log /'
[ ! -e state.json ] || { printf 'state ' && cat state.json; }
