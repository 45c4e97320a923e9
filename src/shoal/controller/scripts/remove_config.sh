#!/bin/sh
# Usage: remove_config MAX_POLLS
# Stops the controller on a head where its Python does not work: without a config it exits by
# itself. Polls its locks, twice a second, until both are free.
max_polls=$1
cd .shoal/controller || exit
rm -f prepared-config.json
if [ -e config.json ]; then
  mv config.json paused-config.json || rm config.json || exit
fi
command -v flock > /dev/null || exit
polls=0
for lock in supervisor.lock controller.lock; do
  while [ -e "$lock" ] && ! flock --shared --nonblock "$lock" true; do
    polls=$((polls + 1))
    [ "$polls" -le "$max_polls" ] || exit 1
    sleep 0.5
  done
done
