#!/bin/bash
# The limit for any launcher: the steps of the cluster file and nothing else, without regard to other
# clusters, failures or later runs. All hosts are set up in parallel; a worker starts Ray as soon as
# the head's GCS listens.
#
# by_hand.sh DIRECTORY HEAD_START WORKER_START HEAD_ADDRESS WORKER_ADDRESS...
# Reads the setup commands from standard input, one per line.
directory=$1 head_start=$2 worker_start=$3 head=$4
shift 4
setup=$(cat)
options=(-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR)

# $1 is the host, $2 the command that starts Ray on it.
bring_up() {
    # shellcheck disable=SC2087 # the setup is expanded here
    rsync -a -e "ssh ${options[*]}" "$directory/" "ubuntu@$1:project/" &&
        ssh "${options[@]}" "ubuntu@$1" bash -l -s <<END
set -e
$setup
export RAY_HEAD_IP=$head
$2
END
}

# shellcheck disable=SC2016 # expands on the worker
wait_for_head='until (exec 3<>/dev/tcp/$RAY_HEAD_IP/6379) 2>/dev/null; do sleep 0.1; done'

bring_up "$head" "$head_start" &
jobs=($!)
for worker in "$@"; do
    bring_up "$worker" "$wait_for_head
$worker_start" &
    jobs+=($!)
done
code=0
for job in "${jobs[@]}"; do
    wait "$job" || code=1
done
exit $code
