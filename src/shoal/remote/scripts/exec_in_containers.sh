# shellcheck shell=sh
# Runs a command in every running container of the cluster $1 on this host; the other arguments are
# the command. A host that never had such a container is left alone. A runtime that does not answer
# is an error.
[ -s "$HOME/.shoal/container" ] || exit 0
runtime=$(cat "$HOME/.shoal/container")
ids=$("$runtime" ps -q --filter "label=shoal.cluster=$1") || exit 1
shift
for id in $ids; do "$runtime" exec "$id" "$@" || exit 1; done
