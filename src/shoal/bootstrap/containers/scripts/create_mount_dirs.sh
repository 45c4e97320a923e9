# shellcheck shell=sh
# Creates directories inside a container as root, owned by the container's user.
#
#   create_mount_dirs.sh RUNTIME CONTAINER SCRIPT DIRECTORY...
#
# SCRIPT is the text of create_owned_dirs.sh.
runtime=$1 container=$2 script=$3
shift 3
# shellcheck disable=SC2016 # expanded inside the container
user=$("$runtime" exec "$container" sh -c 'echo "$(id -u):$(id -g)"') || exit 1
"$runtime" exec -u 0 "$container" sh -c "$script" create_owned_dirs.sh "$user" "$@"
