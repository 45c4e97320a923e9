# shellcheck shell=sh
# Runs in a container. Extracts the tar archive on standard input to $1, by the same rules as rsync:
# the content of a directory goes into $1; a single file, whose name is $2, becomes $1, or goes into
# $1 if that is a directory or ends in a slash.
# A tilde that the user wrote, and no shell has expanded.
# shellcheck disable=SC2088
case $1 in
"~" | "~/"*) path=$HOME${1#"~"} ;;
/*) path=$1 ;;
*) path=$HOME/$1 ;;
esac
if [ -z "$2" ]; then
  mkdir -p "$path" && exec tar -xf - --no-same-owner -C "$path"
  exit
fi
directory=
case $path in
*/) directory=$path ;;
*) if [ -d "$path" ]; then directory=$path; fi ;;
esac
if [ -n "$directory" ]; then
  mkdir -p "$directory"
  exec tar -xf - --no-same-owner -C "$directory"
fi
mkdir -p "$(dirname "$path")" || exit
new=$(mktemp -d "$(dirname "$path")/.shoal.XXXXXX") || exit
tar -xf - --no-same-owner -C "$new" && mv -f "$new/$2" "$path"
code=$?
rm -rf "$new"
exit $code
