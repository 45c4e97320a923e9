# shellcheck shell=sh
# authorize_key PUBLIC_KEY: let the owner of this key log in to this host.
authorize_key() {
  mkdir -p .ssh
  keys=.ssh/authorized_keys
  touch "$keys"
  if ! grep -qxF "$1" "$keys"; then
    # The last line of the file may lack its newline.
    [ -z "$(tail -c 1 "$keys")" ] || echo >> "$keys"
    printf '%s\n' "$1" >> "$keys"
  fi
}
