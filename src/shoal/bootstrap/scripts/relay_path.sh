# shellcheck shell=sh
# Runs on the head: copies PATH to the same path on a worker over SSH, with the cluster's own key.
# A path that does not exist on the head is skipped, as Ray does.
#
#   relay_path.sh PATH USER@HOST PORT ENTER RSYNC_OPTIONS HOST_KEYS
#
# ENTER is the command prefix that enters the worker's container (`exec` if it has none), HOST_KEYS
# the worker's SSH host keys, one per line.
path=$1 login=$2 port=$3 enter=$4 options=$5 host_keys=$6
# shellcheck disable=SC2088 # a literal tilde
case $path in
"~/"*) source=$HOME/${path#"~/"} target=${path#"~/"} ;;
*) source=$path target=$path ;;
esac
[ -e "$source" ] || exit 0
# The paths below are relative, since the home directory may have a space in its name, and rsync and
# ssh split their options at spaces.
cd || exit
if [ -d "$source" ]; then source=$source/ target=$target/; fi
known_hosts=.shoal/known/${login#*@}
mkdir -p "${known_hosts%/*}" &&
  printf '%s\n' "$host_keys" | sed 's/^/worker /' > "$known_hosts" || exit
# shellcheck disable=SC2086 # RSYNC_OPTIONS are several words
exec rsync $options -s --rsync-path="$enter sh -c 'cd; exec rsync \"\$@\"' rsync" \
  -e "ssh -q -p $port -i .shoal/cluster_key -o IdentitiesOnly=yes \
 -o BatchMode=yes -o ConnectTimeout=10 -o StrictHostKeyChecking=yes -o HostKeyAlias=worker \
 -o UserKnownHostsFile=$known_hosts" "$source" "$login:$target"
