"""Ends a machine that nobody makes a node: its launcher may have died in the moment of launching.

From its first boot on, until it has a lease of its own, a machine counts as lost when nobody has
been logged in for the length of a lease. Whoever sets it up is logged in; one whose computer falls
silent in the middle of it counts for the two hours after which a kernel gives up a connection.
"""

from __future__ import annotations

from shoal.remote.runner import quote

# How often in the length of a lease it is looked, and at least how rarely in seconds.
_LOOKS = 5
_LONGEST_PAUSE = 60

# Runs as root. $user is who logs in, $lease a number of seconds, $pause too.
_WATCH = r"""
now() { cut -d. -f1 /proc/uptime; }
someone() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -q '^sshd[^:]*: [^ ]*@'; }
watch() {
  home=$(getent passwd "$user" | cut -d: -f6)
  last=$(now)
  while sleep "$pause"; do
    [ ! -e "$home/.shoal/lease.lock" ] || exit 0
    if someone; then
      last=$(now)
    elif [ $(($(now) - last)) -ge "$lease" ]; then
      shutdown -h now
    fi
  done
}
watch < /dev/null > /dev/null 2>&1 &
"""


def script(user: str, lease: float) -> str:
    """Launch data that makes the machine look after itself until it is a node; nothing where
    leases are endless."""
    if not lease:
        return ""
    pause = max(1, min(round(lease / _LOOKS), _LONGEST_PAUSE))
    figures = f"user={quote([user])} lease={round(lease)} pause={pause}"
    return f"#!/bin/sh\n{figures}\n{_WATCH}"
