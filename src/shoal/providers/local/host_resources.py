"""The resources of a host that has not been a node yet: what Ray would detect on it. Runs
nothing."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.remote.scripts import script_command

_PREFIX = "resource "
_KIB = 1024

# Ray's defaults for the size of the object store.
_OBJECT_STORE_SHARE = 0.3
_OBJECT_STORE_LIMIT = 200e9


def read_command() -> str:
    """A command that prints what a host has."""
    return script_command("shoal.providers.local.scripts", "host_resources.sh")


def parse(lines: Iterable[str]) -> dict[str, float] | None:
    """The resources on lines that `read_command` printed; None if there are none."""
    amounts: dict[str, float] = {}
    for line in lines:
        name, _, amount = line.removeprefix(_PREFIX).partition(" ")
        if line.startswith(_PREFIX) and amount.isdigit():
            amounts[name] = float(amount)
    if not amounts.get("cpus"):
        return None
    resources = {"CPU": amounts["cpus"]}
    if amounts.get("gpus"):
        resources["GPU"] = amounts["gpus"]
    if "memory" in amounts:
        available = amounts["memory"] * _KIB
        shared = amounts.get("shared_memory", available / _KIB) * _KIB
        object_store = min(_OBJECT_STORE_SHARE * available, _OBJECT_STORE_LIMIT, 0.95 * shared)
        resources["object_store_memory"] = float(int(object_store))
        resources["memory"] = float(int(available - object_store))
    return resources


def other_lines(lines: Iterable[str]) -> list[str]:
    """The lines that another command printed."""
    return [line for line in lines if not line.startswith(_PREFIX)]
