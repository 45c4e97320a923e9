#!/bin/sh
# Creates this host's next SSH host key, once, and prints its public half. Runs as root.
set -e
cd /etc/ssh
if [ ! -s shoal_next_key.pub ]; then
  rm -f shoal_next_key
  ssh-keygen -q -t ed25519 -N '' -C '' -f shoal_next_key
fi
cat shoal_next_key.pub
