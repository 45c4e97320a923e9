"""Preflight checks of regions, zones, machine types and accelerators. Pure: records in, findings
out.

A fix can be applied literally: a line for the file at the finding's place, a command, or `remove
X`; text after `, or` is an alternative.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.catalog.price_table import load_price_table
from shoal.providers.gcp import launch_request
from shoal.providers.model import Finding
from shoal.providers.vm import node_type_check
from shoal.providers.vm.launch_options import Market

Record = Mapping[str, Any]

# Families to which GPUs can be attached; those of the others are part of the machine type.
_ATTACHABLE = ("n1",)
_CUSTOM = re.compile(r"(?:[a-z]\w*-)?custom-(\d+)-(\d+)(?:-ext)?")
_MEMORY_STEP_MB = 256


class NodeTypeCheck(node_type_check.NodeTypeCheck):
    """A node type to check."""

    TYPE_KEY = "machineType"

    @property
    def instance_type(self) -> str:
        return launch_request.machine_type(self.config)

    @property
    def market(self) -> Market:
        return launch_request.market(self.config)

    @property
    def accelerators(self) -> dict[str, int]:
        """The GPUs that the file attaches, by type."""
        return launch_request.accelerators(self.config)


@dataclass(frozen=True)
class Facts:
    """What Google reports, as far as it could be read. Machine types and accelerator types are
    records by zone and name, for the zones that have them; `zones` are all of the region."""

    region: str = ""
    zones: Sequence[str] = ()
    machine_types: Mapping[tuple[str, str], Record] = field(default_factory=dict)
    accelerator_types: Mapping[tuple[str, str], Record] = field(default_factory=dict)

    def machine_type(self, name: str) -> Record | None:
        """The record of a machine type in whichever zone."""
        return next((r for (_, n), r in self.machine_types.items() if n == name), None)

    def zones_with(self, node_type: NodeTypeCheck) -> list[str]:
        """The zones of the region that have the machine type and the GPUs of a node type."""
        return [
            zone
            for zone in self.zones
            if (zone, node_type.instance_type) in self.machine_types
            and all((zone, gpu) in self.accelerator_types for gpu in node_type.accelerators)
        ]


def check_region(region: str, known: Collection[str]) -> list[Finding]:
    if region in known:
        return []
    similar = difflib.get_close_matches(region, known, n=1) or sorted(known)[:1] or ["us-west1"]
    return [
        Finding(
            "error",
            f"there is no region {region}",
            why="Compute Engine does not have it, or the project may not use it",
            fix=f"region: {similar[0]}",
            at=("provider", "settings", "region"),
        )
    ]


def check_zones(named: Sequence[str], region: str, zones: Sequence[str]) -> list[Finding]:
    """Whether the zones that the file names are in its region."""
    wrong = [zone for zone in named if zone not in zones]
    if not wrong:
        return []
    similar = difflib.get_close_matches(wrong[0], zones, n=1) or list(zones[:1])
    return [
        Finding(
            "error",
            f"there is no zone {wrong[0]} in {region}",
            why=f"the region has {', '.join(zones)}",
            fix=_zones_setting([zone for zone in named if zone in zones] or similar),
            at=("provider", "settings", "availability_zone"),
        )
    ]


def check_machine_type(
    node_type: NodeTypeCheck, facts: Facts, zones: Collection[str]
) -> list[Finding]:
    """Whether one of the zones in which a node type is launched has its machine type."""
    name, at = node_type.instance_type, node_type.at("machineType")
    if problem := _custom_type_problem(name):
        why, fixed = problem
        return [
            Finding("error", f"there is no machine type {name}", why, f"machineType: {fixed}", at)
        ]
    offered = [zone for zone in facts.zones if (zone, name) in facts.machine_types]
    if not offered:
        return [
            Finding(
                "error",
                f"there is no machine type {name} in {facts.region}",
                why="no zone of the region has it",
                fix=f"machineType: {_similar_type(name, facts.region)}, or choose another region",
                at=at,
            )
        ]
    if set(offered) & set(zones):
        return []
    return [
        Finding(
            "error",
            f"{name} is not offered in {', '.join(sorted(zones))}",
            why=f"Google offers it in {', '.join(offered)}",
            fix=_zones_setting(offered),
            at=at,
        )
    ]


def check_accelerators(
    node_type: NodeTypeCheck, facts: Facts, zones: Collection[str]
) -> list[Finding]:
    """Whether the GPUs that the file attaches exist, fit the machine type, and are offered in one
    of its zones."""
    at = node_type.at("guestAccelerators")
    family = node_type.instance_type.partition("-")[0]
    if node_type.accelerators and family not in _ATTACHABLE:
        names = ", ".join(node_type.accelerators)
        return [
            Finding(
                "error",
                f"{names} cannot be attached to {node_type.instance_type}",
                why="GPUs can be attached to N1 machine types only; those of newer types are part "
                "of them",
                fix="machineType: n1-standard-4, or remove guestAccelerators",
                at=at,
            )
        ]
    for name, count in node_type.accelerators.items():
        records = {z: facts.accelerator_types[z, name] for z in facts.zones
                   if (z, name) in facts.accelerator_types}  # fmt: skip
        if not records:
            offered = sorted({gpu for _, gpu in facts.accelerator_types})
            similar = difflib.get_close_matches(name, offered, n=1) or offered[:1]
            fix = f"acceleratorType: {similar[0]}" if similar else "remove guestAccelerators"
            what = f"there is no accelerator {name} in {facts.region}"
            why = f"the region has {', '.join(offered) or 'none'}"
            return [Finding("error", what, why, f"{fix}, or choose another region", at)]
        most = max(int(r.get("maximumCardsPerInstance") or count) for r in records.values())
        if count > most:
            what = f"an instance has at most {most} {name}"
            why = f"the file attaches {count}"
            return [Finding("error", what, why, f"acceleratorCount: {most}", at)]
        both = facts.zones_with(node_type)
        has_type = any((zone, node_type.instance_type) in facts.machine_types for zone in zones)
        if has_type and not set(both) & set(zones):
            what = f"{name} is not offered in {', '.join(sorted(zones))}"
            why = f"Google offers it in {', '.join(records)}"
            fix = _zones_setting(both) if both else "remove guestAccelerators"
            return [Finding("error", what, why, f"{fix}, or choose another region", at)]
    return []


def check_maintenance(node_type: NodeTypeCheck) -> list[Finding]:
    """Whether an instance with GPUs is to be migrated, which Google refuses."""
    policy = launch_request.scheduling(node_type.config).get("onHostMaintenance")
    if policy != "MIGRATE" or not launch_request.has_gpus(node_type.config):
        return []
    return [
        Finding(
            "error",
            f"{node_type.name} cannot be migrated",
            why="Google terminates instances with GPUs for maintenance",
            fix="onHostMaintenance: TERMINATE",
            at=node_type.at("scheduling"),
        )
    ]


def check_labels(own: Mapping[str, str]) -> list[Finding]:
    """Whether the file's own tags have keys that can be labels. Values of any form are encoded."""
    invalid = [key for key in own if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key)]
    if not invalid:
        return []
    what = f"Google does not accept the label {invalid[0]}"
    why = "a key has lowercase letters, digits, - and _, at most 63, and starts with a letter"
    return [Finding("error", what, why, f"remove {invalid[0]}", ("shoal", "tags"))]


def _custom_type_problem(name: str) -> tuple[str, str] | None:
    """What is wrong with the name of a custom machine type, and a name without that."""
    match = _CUSTOM.fullmatch(name)
    if match is None:
        if "custom" not in name:
            return None
        return "a custom type is written as n2-custom-VCPUS-MEGABYTES", "n2-custom-4-16384"
    vcpus, memory = int(match[1]), int(match[2])
    if vcpus > 1 and vcpus % 2:
        why = "the vCPUs of a custom type are 1 or an even number"
    elif memory % _MEMORY_STEP_MB:
        why = f"the memory of a custom type is a multiple of {_MEMORY_STEP_MB} MB"
    else:
        return None
    even = vcpus if vcpus == 1 else vcpus + vcpus % 2
    rounded = -(-memory // _MEMORY_STEP_MB) * _MEMORY_STEP_MB
    return why, name.replace(f"custom-{match[1]}-{match[2]}", f"custom-{even}-{rounded}")


def _similar_type(name: str, region: str) -> str:
    """The machine type of the region with the most similar name."""
    known = [t.name for t in load_price_table("gcp") if region in (t.prices or {})]
    known = [t for t in known if t != name] or [launch_request.DEFAULT_TYPE]
    return (difflib.get_close_matches(name, known, n=1) or [launch_request.DEFAULT_TYPE])[0]


def _zones_setting(zones: Sequence[str]) -> str:
    """The setting that names these zones."""
    return f"provider: {{availability_zone: [{', '.join(zones)}]}}"
