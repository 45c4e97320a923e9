# shellcheck shell=sh
# Prints the names of this node's Ray processes, one per line, and `any ray` if any Ray runs here,
# of this node or not, that is not in a container.
#
#   list_ray_processes.sh INSTANCE_ID
#
# Ray's processes carry the instance id in their environment, which distinguishes them from those
# of another cluster on the same host.
variable=RAY_CLOUD_INSTANCE_ID=$1
# shellcheck disable=SC2013 # these paths have no spaces
if [ -d /proc/self ]; then
  for file in $(grep -lszxF "$variable" /proc/[0-9]*/environ); do
    cat "${file%environ}comm" 2>/dev/null
  done
  for file in $(grep -lsxE 'raylet|gcs_server' /proc/[0-9]*/comm); do
    if [ "$(readlink "${file%comm}ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ]; then
      echo "any ray"
      break
    fi
  done
else # macOS
  # shellcheck disable=SC2009 # pgrep does not print the environment
  ps -axEww -o comm=,command= | grep -F " $variable " | awk '{print $1}' | sed 's|.*/||'
fi
true
