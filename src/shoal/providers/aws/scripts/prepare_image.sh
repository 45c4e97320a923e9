# shellcheck shell=sh
# Prepares a node, on which setup is complete and Ray does not run yet, for an image. Runs as root.
#
#   prepare_image.sh prepare USER KEY STATE [PUBLIC_KEY...]
#   prepare_image.sh done
#
# The image must not have the cluster's secrets, also not as deleted files, so it exits with 78 if
# they are on the disk. What only the next instance can remove is removed by remove_old_state.sh
# when it boots, which finds here what it may keep: KEY, the applied state STATE, and the keys that
# were authorized by neither Shoal nor cloud-init, which authorized these PUBLIC_KEYs.
directory=/var/lib/shoal-image
if [ "$1" = "done" ]; then
  rm -rf "$directory"
  exit
fi
set -e
user=$2 key=$3 state=$4
shift 4
home_of() { getent passwd "$1" | cut -d: -f6; }
for name in auth_token cluster_key; do
  file=$(home_of "$user")/.shoal/$name
  [ -L "$file" ] || [ ! -e "$file" ] || exit 78
done
umask 077
rm -rf "$directory"
mkdir -p "$directory/keys"
printf '%s\n' "$key" > "$directory/key"
printf '%s' "$state" > "$directory/applied_state.json"
for each in "$user" root; do
  keys=$(home_of "$each")/.ssh/authorized_keys
  [ -f "$keys" ] || continue
  : > "$directory/keys/$each"
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in *" shoal:"*) continue ;; esac
    for public; do case $line in *"$public"*) continue 2 ;; esac; done
    printf '%s\n' "$line" >> "$directory/keys/$each"
  done < "$keys"
done
sync
