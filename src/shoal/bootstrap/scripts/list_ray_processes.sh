# shellcheck shell=sh
# Prints the names of this node's Ray processes, one per line.
#
#   list_ray_processes.sh INSTANCE_ID
#
# Ray's processes carry the instance id in their environment, which distinguishes them from those
# of another cluster on the same host.
variable=RAY_CLOUD_INSTANCE_ID=$1
if [ -d /proc/self ]; then
  # shellcheck disable=SC2013 # these paths have no spaces
  for file in $(grep -lszxF "$variable" /proc/[0-9]*/environ); do
    cat "${file%environ}comm" 2>/dev/null
  done
else # macOS
  # shellcheck disable=SC2009 # pgrep does not print the environment
  ps -axEww -o comm=,command= | grep -F " $variable " | awk '{print $1}' | sed 's|.*/||'
fi
true
