#!/bin/bash
# Start Ray on several hosts in parallel, as soon as each answers SSH.
#
# start_by_hand.sh HOST COMMAND [HOST COMMAND]...
options=(-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR)
while [ $# -gt 0 ]; do
    {
        until ssh "${options[@]}" -o ConnectTimeout=1 "ubuntu@$1" true 2>/dev/null; do sleep 0.1; done
        echo "$2" | ssh "${options[@]}" "ubuntu@$1" bash -l -s
    } &
    shift 2
done
wait
