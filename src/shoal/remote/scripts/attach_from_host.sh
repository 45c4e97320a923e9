# shellcheck shell=bash
# Runs the command $1, which enters a container, and runs the command $2 when the terminal closes:
# a container runtime does not tell the processes in a container about that. The first command
# runs in the background because bash handles signals only after a foreground process ends. Sent on
# one line.

# $2 is the command itself.
# shellcheck disable=SC2064
trap "$2 </dev/null >/dev/null 2>&1; kill -9 \$!; exit 129" HUP TERM;
eval "exec $1" <&0 &
wait $!
