#!/bin/sh
# Replaces this host's SSH host key by the next one and reloads sshd; open connections stay. Runs
# as root.
set -e
cd /etc/ssh
[ -s shoal_next_key ] || exit 0
mv -f shoal_next_key ssh_host_ed25519_key
mv -f shoal_next_key.pub ssh_host_ed25519_key.pub
systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null || pkill -HUP -o -x sshd
