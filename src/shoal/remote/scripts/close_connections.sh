# shellcheck shell=sh
# Runs on a host that leaves its cluster: closes the connections between it and the head, from this
# end, and removes what was noted about them. A connection that carries this command is closed by
# the other end. Needs head_directory.sh.
#
#   close_connections.sh OWNER
directory=$(head_directory "$1")
[ -d "$directory" ] || exit 0
for socket in "$directory"/*; do
  # `stop`, not `exit`: what runs over the connection, such as this command, may finish.
  [ ! -S "$socket" ] || timeout 5 ssh -F none -o ControlPath="$socket" -O stop head 2>/dev/null
done
sshd=$(own_sshd)
if read -r pid started < "$directory/sshd" && [ "$pid $started" != "$sshd" ] &&
  [ "$(start_time "$pid")" = "$started" ]; then
  kill "$pid"
fi 2>/dev/null
rm -rf "$directory"
