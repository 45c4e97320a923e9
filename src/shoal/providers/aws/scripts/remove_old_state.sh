# shellcheck shell=sh
# Arguments: login user. Runs as root at every boot, before sshd, with INSTANCE_ID set.
marker=/var/lib/shoal-instance
if [ "$(cat "$marker" 2>/dev/null)" != "$INSTANCE_ID" ]; then
  home=$(getent passwd "$1" | cut -d: -f6)
  [ -z "$home" ] || rm -rf "$home/.shoal"
  echo "$INSTANCE_ID" > "$marker"
fi
