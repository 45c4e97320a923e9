#!/bin/sh
# Usage: start_if_stopped CONFIG SUPERVISOR_LOCK COMMAND...
# Runs the command unless the cluster has no config or a supervisor holds the lock. Cron runs this
# every minute, so it decides before any Python is loaded.
config=$1
lock=$2
shift 2
[ -e "$config" ] || exit 0
if command -v flock > /dev/null && ! flock --shared --nonblock "$lock" true; then
  exit 0
fi
exec "$@"
