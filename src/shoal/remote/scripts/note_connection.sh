# shellcheck shell=sh
# Runs on a host for its head: notes which sshd process serves the head, so that
# close_connections.sh can end it. Needs head_directory.sh.
#
#   note_connection.sh OWNER
directory=$(head_directory "$1")
sshd=$(own_sshd)
[ -n "$sshd" ] || exit 0
umask 077
mkdir -p "$directory"
[ "$(cat "$directory/sshd" 2>/dev/null)" = "$sshd" ] || echo "$sshd" > "$directory/sshd"
