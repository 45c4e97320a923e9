"""A script that ends an instance which never becomes a node: its launcher may have died.

From first boot until the node's own lease starts, the instance ends itself when no SSH session has
existed for the length of a lease. Bootstrapping keeps a session open; if the launcher's network
drops meanwhile, the session counts until TCP keepalive ends it, after about two hours.
"""

from __future__ import annotations

from shoal.remote.runner import quote
from shoal.remote.scripts import read_script

_CHECKS_PER_LEASE = 5
_MAX_PAUSE_SECONDS = 60


def script(user: str, lease: float, end: str = "shutdown -h now") -> str:
    """The watchdog as a script for first boot; empty where leases never expire. `user` is the login
    user, `lease` is in seconds, `end` is the shell command by which the instance ends itself."""
    if not lease:
        return ""
    pause = max(1, min(round(lease / _CHECKS_PER_LEASE), _MAX_PAUSE_SECONDS))
    # The script is run without arguments, so it sets its own.
    arguments = quote(["set", "--", user, str(round(lease)), str(pause), end])
    return (
        f"#!/bin/sh\n{arguments}\n{read_script('shoal.providers.vm.scripts', 'boot_watchdog.sh')}"
    )
