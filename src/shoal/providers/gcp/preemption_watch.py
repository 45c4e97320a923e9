"""The command that watches a spot instance for its preemption, which Google announces only in the
instance's own metadata."""

from __future__ import annotations

from shoal.providers.model import Instance
from shoal.remote.runner import quote
from shoal.remote.scripts import read_script


def command_for(instance: Instance) -> str:
    """A command for the instance that prints a line for its notice; empty for one that is not
    spot."""
    if instance.market != "spot":
        return ""
    source = read_script("shoal.providers.gcp.scripts", "preemption.py")
    return quote(["python3", "-u", "-c", source])
