#!/usr/bin/env bash
# Trains on a cluster on this machine while its workers are killed, one every ten seconds.
set -euo pipefail
cd "$(dirname "$0")/../.."
shoal=${SHOAL:-.venv/bin/shoal}
command -v "$shoal" >/dev/null || shoal=shoal

cleanup() { "$shoal" down spot-drill --yes >/dev/null 2>&1 || true; }
trap cleanup EXIT

"$shoal" up --cluster-name spot-drill --yes
"$shoal" train -u spot-drill -f examples/train/own_loop.py -m 3 --objective size &
training=$!
for _ in 1 2 3; do
    sleep 10
    kill -0 "$training" 2>/dev/null || break
    worker=$(pgrep -f 'shoal.train.worker own_loop.py' | tail -n 1 || true)
    if [ -n "$worker" ]; then
        echo "--- killing worker process $worker"
        kill -9 "$worker" || true
    fi
done
wait "$training"
