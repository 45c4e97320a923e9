# shellcheck shell=sh
# Removes the keys with this comment from the authorized keys of this host; prints a line if there
# were any.
#
#   revoke_key.sh KEY_COMMENT
#
# The owner of the host logs in with this file too: only a complete line that is certainly ours is
# removed, and the new file replaces the old one only once it is completely written.
set -e
comment=$1
keys=$(readlink -f .ssh/authorized_keys) && [ -f "$keys" ] || exit 0
grep -qF " $comment" "$keys" || exit 0
is_ours() {
  case $1 in "ssh-ed25519 "*" $comment") ;; *) return 1 ;; esac
  key=${1#ssh-ed25519 }
  case ${key%" $comment"} in *" "*) return 1 ;; esac
}
new=$keys.shoal-new
trap 'rm -f "$new"' EXIT
cp -p "$keys" "$new"
while IFS= read -r line || [ -n "$line" ]; do
  is_ours "$line" || printf '%s\n' "$line" || exit 1
done < "$keys" > "$new"
cmp -s "$keys" "$new" && exit 0
mv -f "$new" "$keys"
echo revoked
