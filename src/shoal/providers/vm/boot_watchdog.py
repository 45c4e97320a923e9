"""User data that terminates an instance which never becomes a node: its launcher may have died.

From first boot until the node's own lease starts, the instance shuts down when no SSH session has
existed for the length of a lease. Bootstrapping keeps a session open; if the launcher's network
drops meanwhile, the session counts until TCP keepalive ends it, after about two hours.
"""

from __future__ import annotations

from shoal.remote.runner import quote
from shoal.remote.scripts import read_script

_CHECKS_PER_LEASE = 5
_MAX_PAUSE_SECONDS = 60


def script(user: str, lease: float) -> str:
    """The watchdog as a user data script; empty where leases never expire. `user` is the login
    user, `lease` is in seconds."""
    if not lease:
        return ""
    pause = max(1, min(round(lease / _CHECKS_PER_LEASE), _MAX_PAUSE_SECONDS))
    # cloud-init runs user data without arguments, so the script sets its own.
    arguments = quote(["set", "--", user, str(round(lease)), str(pause)])
    return (
        f"#!/bin/sh\n{arguments}\n{read_script('shoal.providers.vm.scripts', 'boot_watchdog.sh')}"
    )
