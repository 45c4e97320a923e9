# shellcheck shell=sh
# Arguments: login user, key of the baked image that the instance is launched from, empty if it is
# none. Runs as root at every boot, before sshd and before keys are authorized, with INSTANCE_ID set.
# Removes what another instance left in the image, except what setup left in a baked one.
marker=/var/lib/shoal-instance image=/var/lib/shoal-image
if [ "$(cat "$marker" 2>/dev/null)" != "$INSTANCE_ID" ]; then
  home=$(getent passwd "$1" | cut -d: -f6)
  if [ -n "$2" ] && [ "$(cat "$image/key" 2>/dev/null)" = "$2" ]; then
    for file in "$home"/.shoal/* "$home"/.shoal/.[!.]*; do
      # A Ray that Shoal installed, and whether the node has a container.
      case ${file##*/} in ray | container) ;; *) rm -rf "$file" ;; esac
    done
    mkdir -p "$home/.shoal"
    cp "$image/applied_state.json" "$home/.shoal/"
    chown "$1:" "$home/.shoal" "$home/.shoal/applied_state.json"
  else
    [ -z "$home" ] || rm -rf "$home/.shoal"
  fi
  for file in "$image"/keys/*; do
    [ -f "$file" ] || continue
    user_home=$(getent passwd "${file##*/}" | cut -d: -f6)
    cat "$file" > "$user_home/.ssh/authorized_keys"
  done
  rm -rf "$image" /tmp/shoal-* /var/tmp/shoal-owner
  echo "$INSTANCE_ID" > "$marker"
fi
