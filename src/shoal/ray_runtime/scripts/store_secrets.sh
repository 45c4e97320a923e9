# shellcheck shell=sh
# Runs on the head: writes secrets that create_secrets.sh keeps in memory to the disk, so that they
# survive a reboot. Each file appears complete and with its final mode.
set -e
umask 077
for name in auth_token cluster_key cluster_key.pub; do
  file=.shoal/$name
  [ -L "$file" ] || continue
  memory=$(readlink "$file")
  cat "$memory" > "$file.new"
  mv -f "$file.new" "$file"
  rm -f "$memory"
done
