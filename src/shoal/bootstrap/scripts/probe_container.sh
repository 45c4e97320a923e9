# shellcheck shell=sh
# Prints whether a container runs and the digest it is labelled with, then the output of a script
# inside it.
#
#   probe_container.sh RUNTIME CONTAINER LABEL SCRIPT [ARGUMENT...]
runtime=$1 container=$2 label=$3 script=$4
shift 4
format="{{.State.Running}} {{index .Config.Labels \"$label\"}}"
state=$("$runtime" container inspect -f "$format" "$container" 2>/dev/null)
echo "$state"
case $state in true*) "$runtime" exec "$container" sh -c "$script" sh "$@" ;; esac
true
