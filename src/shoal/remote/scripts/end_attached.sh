# shellcheck shell=bash
# Ends the process group that is written in the file $1: as Ctrl-C would, and then by force. Sent on
# one line.
group=$(cat "$1") || exit 0;
rm -f "$1";
for name in INT TERM KILL; do
  kill -$name -- "-$group" || exit 0;
  n=0;
  while [ $n -lt 20 ] && kill -0 -- "-$group"; do
    sleep 0.1;
    n=$((n+1));
  done;
done 2>/dev/null
