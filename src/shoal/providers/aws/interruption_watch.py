"""The command that watches a spot instance for interruption notices, which AWS publishes only in
the instance's own metadata. It runs `scripts/spot_interruption.py` in the instance's Python 3,
which cloud-init always brings."""

from __future__ import annotations

from shoal.providers.model import Instance
from shoal.remote.runner import quote
from shoal.remote.scripts import read_script


def interruption_watch_command() -> str:
    """A command for the instance that prints a line for every interruption notice."""
    source = read_script("shoal.providers.aws.scripts", "spot_interruption.py")
    return quote(["python3", "-u", "-c", source])


def command_for(instance: Instance) -> str:
    """The command for an instance; empty for one that is not spot."""
    return interruption_watch_command() if instance.market == "spot" else ""
