# shellcheck shell=sh
# Makes a host this cluster's own. If another cluster has claimed it, prints that cluster and exits
# with 75; with `force`, ends everything that cluster runs on the host first. Exits with 77, and
# prints the user and the claim file, if only another user can replace the claim.
#
# Arguments: the claim file, the claim, its owner, `force` or `ask`, the id of the host's node, and
# three scripts: one that ends the processes of a node, one that removes a cluster's containers, and
# one that closes the connections of its head.
claim_file=$1 claim=$2 new_owner=$3 mode=$4 default_id=$5 end_processes=$6 remove_containers=$7
close_connections=$8
umask 022

# Ends what the owner of the claim runs here and removes its files: its processes, its containers,
# and, on its head, its controller. A worker that shares its home with its head has no files of its
# own.
evict() {
  sh -c "$end_processes" stop_ray.sh "$id" || return
  sh -c "$remove_containers" remove_containers "${owner%@*}" || return
  sh -c "$close_connections" close_connections "$owner"
  [ "$node" = head ] || [ ! -e .shoal/cluster_key ] || return 0
  rm -f .shoal/controller/*config.json .shoal/controller/restart.sh
  for lock in .shoal/controller/*.lock; do
    tries=0
    while [ -e "$lock" ] && command -v flock > /dev/null && ! flock -n "$lock" true; do
      signal=KILL
      [ $tries -ge 50 ] || signal=TERM
      kill -"$signal" "$(cat "$lock")" 2>/dev/null
      [ $tries -lt 100 ] || return
      sleep 0.1
      tries=$((tries + 1))
    done
  done
  rm -rf .shoal
}

new_file=$claim_file.$$
printf '%s\n' "$claim" > "$new_file" || exit 1
trap 'rm -f "$new_file"' EXIT
# Atomic: of two clusters that claim the host at the same time, one fails.
ln "$new_file" "$claim_file" 2>/dev/null && exit 0

user=$(stat -c %U "$claim_file")
owner='' node='' id=''
[ ! -r "$claim_file" ] || read -r owner node id < "$claim_file"
if [ "$owner" != "$new_owner" ] && [ "$mode" != force ]; then
  if [ -n "$owner" ]; then echo "cluster $owner"; else echo "a cluster of user $user"; fi
  exit 75
fi
# shellcheck disable=SC3067  # dash, bash and busybox all know -O
if [ ! -O "$claim_file" ] && [ "$(id -u)" != 0 ]; then
  echo "$user"
  echo "$claim_file"
  exit 77
fi
# Before the claim changes: afterwards the old cluster's processes could not be found, and would
# take the host's new Ray for their own.
if [ -n "$owner" ] && [ "$owner" != "$new_owner" ]; then
  id=${id:-$default_id}
  evict || { echo "what cluster $owner runs there does not end" >&2; exit 1; }
fi
mv -f "$new_file" "$claim_file"
