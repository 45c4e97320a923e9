# shellcheck shell=bash disable=SC2154
# Sends a directory's content or a file; rsync_path.sh comes first. The first two arguments are
# --server --sender. Sent on one line.
if [ -d "$path" ]; then exec rsync "$@" "$path/"; fi;
exec rsync "$1" "$2" -L "${@:3}" "$path"
