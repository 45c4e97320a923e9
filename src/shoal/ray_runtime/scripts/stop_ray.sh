# shellcheck shell=sh
# Ends every process of one node's Ray, and returns when none is left.
#
#   stop_ray.sh INSTANCE_ID
#
# `ray stop` would end every Ray on the host, takes two seconds, and needs Ray on the PATH.
variable=RAY_CLOUD_INSTANCE_ID=$1
node_pids() {
  grep -lszxF "$variable" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | grep -vx $$
}
# shellcheck disable=SC2086 # several process ids
signal() { kill "$1" $pids 2>/dev/null; }

pids=$(node_pids)
[ -z "$pids" ] || signal -TERM
n=0
while [ -n "$(node_pids)" ] && [ $n -lt 10 ]; do
  sleep 0.1
  n=$((n + 1))
done
n=0
while pids=$(node_pids) && [ -n "$pids" ] && [ $n -lt 50 ]; do
  signal -KILL
  sleep 0.1
  n=$((n + 1))
done
[ -z "$(node_pids)" ]
