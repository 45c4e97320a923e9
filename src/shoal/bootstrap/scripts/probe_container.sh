# shellcheck shell=sh
# Prints whether a container runs and the digest it is labelled with, then the output of a script
# inside it.
#
#   probe_container.sh RUNTIME CONTAINER LABEL SCRIPT [ARGUMENT...]
runtime=$1 container=$2 label=$3 script=$4
shift 4
format="{{.State.Running}} {{index .Config.Labels \"$label\"}}"
inspect() { state=$("$runtime" container inspect -f "$format" "$container" 2>/dev/null); }
inspect
# On a host that has just booted the daemon may start after sshd: what is in the node's container
# must not be taken for lost.
tries=90
while [ -z "$state" ] && [ -s "$HOME/.shoal/container" ] && [ "$tries" -gt 0 ]; do
  "$runtime" ps 2>&1 | grep -q "daemon running" || tries=0
  [ "$tries" = 0 ] || sleep 0.5
  tries=$((tries - 1))
  inspect
done
echo "$state"
case $state in true*) "$runtime" exec "$container" sh -c "$script" sh "$@" ;; esac
true
