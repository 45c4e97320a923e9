# shellcheck shell=sh
# print_status LOG_LINES: print, each on a line with its name: the time, when the controller's
# heartbeat and config were written (also that of a paused controller), when the supervisor restarted the controller (one line for
# each), and the last lines of its log. All times are the head's, in seconds. The working directory
# is the controller's.
print_status() {
  echo "now $(date +%s)"
  for name in heartbeat config.json paused-config.json; do
    [ ! -e "$name" ] || echo "$name $(date -r "$name" +%s)"
  done
  [ ! -e restarts ] || sed 's/^/restart /' restarts
  [ ! -e controller.log ] || tail -n "$1" controller.log | sed 's/^/log /'
}
