# shellcheck shell=sh
# Removes every container of the cluster $1 on this host. Images stay.
[ -s "$HOME/.shoal/container" ] || exit 0
runtime=$(cat "$HOME/.shoal/container")
ids=$("$runtime" ps -aq --filter "label=shoal.cluster=$1") || exit 1
# One argument for each id.
# shellcheck disable=SC2086
[ -z "$ids" ] || "$runtime" rm -f $ids >/dev/null || exit 1
rm -f "$HOME/.shoal/container"
