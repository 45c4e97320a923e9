# shellcheck shell=sh
# Prints `RUNNING EXIT_CODE` of a container just after its start, then its last output if it has
# exited.
#
#   check_running.sh RUNTIME CONTAINER
runtime=$1 container=$2
sleep 0.2
format='{{.State.Running}} {{.State.ExitCode}}'
state=$("$runtime" container inspect -f "$format" "$container") || exit 1
echo "$state"
case $state in true*) ;; *) "$runtime" logs --tail 20 "$container" 2>&1 ;; esac
