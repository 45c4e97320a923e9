"""What AWS tells a spot machine about its end, in the machine's own metadata, and nowhere else.

`watch_command` sends `spot_watch.py` to the machine, where it runs in whatever Python 3 is there:
cloud-init, which our machines need anyway, brings one.
"""

from __future__ import annotations

from importlib import resources

from shoal.remote.runner import quote


def watch_command() -> str:
    """A command that prints a line for every notice that AWS gives the machine it runs on."""
    source = (
        resources.files("shoal.providers.aws.scripts").joinpath("spot_interruption.py").read_text()
    )
    return quote(["python3", "-u", "-c", source])
