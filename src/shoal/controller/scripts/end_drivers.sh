#!/bin/sh
# Usage: end_drivers NAME VALUE
# Ends the programs of this user that have NAME=VALUE in their environment and Ray loaded. A driver
# does not notice that its cluster has died, and would wait for an answer without end. Other
# programs, such as a user's shell, go on.
variable=$1=$2
drivers() {
  # shellcheck disable=SC2013 # these paths have no spaces
  for file in $(grep -lszxF "$variable" /proc/[0-9]*/environ 2> /dev/null); do
    directory=${file%/environ}
    ! grep -qs '/_raylet\.' "$directory/maps" || echo "${directory#/proc/}"
  done
}
n=0
while pids=$(drivers) && [ -n "$pids" ] && [ $n -lt 50 ]; do
  signal=-TERM
  [ $n -lt 20 ] || signal=-KILL
  # shellcheck disable=SC2086 # several process ids
  [ $n -ne 0 ] && [ $n -lt 20 ] || kill $signal $pids 2> /dev/null
  sleep 0.1
  n=$((n + 1))
done
[ -z "$pids" ]
