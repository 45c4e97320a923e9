# shellcheck shell=bash disable=SC2154
# Receives a file; rsync_path.sh comes first. Sent on one line.
case $path in
  */) parent=$path;;
  *) parent=$(dirname -- "$path");;
esac;
mkdir -p -- "$parent" && exec rsync "$@" "$path"
