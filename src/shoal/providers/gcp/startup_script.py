"""The startup script of instances, which Google's guest agent runs as root at every boot: it
prints the host keys to the serial console, and watches an instance that never becomes a node."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.providers.gcp import lease
from shoal.providers.vm import boot_watchdog
from shoal.remote.scripts import read_script
from shoal.spec.cluster_spec import ClusterSpec

KEY = "startup-script"
# Where the file's own startup script is, which Shoal's runs.
USER_KEY = "shoal-user-startup-script"


def metadata(spec: ClusterSpec) -> dict[str, str]:
    """The metadata with the script."""
    watchdog = boot_watchdog.script(
        spec.auth.ssh_user, spec.shoal.lease, end=lease.delete_command()
    )
    tail = read_script("shoal.providers.gcp.scripts", "startup.sh")
    return {KEY: f"{watchdog or '#!/bin/sh'}\n{tail}"}


def merge(own: Mapping[str, str], shoal: Mapping[str, str]) -> dict[str, str]:
    """The scripts of the file and of Shoal, if there are both."""
    if KEY in own and KEY in shoal:
        return {KEY: shoal[KEY], USER_KEY: own[KEY]}
    return {}
