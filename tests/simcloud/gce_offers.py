"""What Google offers in the zones of the simulated project: machine types, custom ones among them,
accelerators and images, as its API shows them."""

from __future__ import annotations

import re
from typing import Any

from tests.simcloud.gce_store import API, FAMILIES, MACHINE_TYPES, REGION_OF, offers

_CUSTOM = re.compile(r"(?:(n1|n2|n2d|e2)-)?custom-(\d+)-(\d+)(-ext)?")
_GPUS_OF_TYPES = {"a2-highgpu-1g": "nvidia-tesla-a100", "g2-standard-4": "nvidia-l4"}
# Zones with GPUs that can be attached, and how many an instance may have.
_ACCELERATORS = {
    "nvidia-tesla-t4": (("us-west1-a", "us-west1-b", "us-central1-a"), 4),
    "nvidia-tesla-v100": (("us-west1-a", "us-central1-a"), 8),
}
ARM_IMAGE = ("debian-cloud", "debian-12-arm64")
# Images that their publisher replaced: the project, the state, and the family of the next one.
_REPLACED = {
    "common-cpu-v20240922": ("deeplearning-platform-release", "DEPRECATED", "common-cpu"),
    "common-cpu-v20200101": ("deeplearning-platform-release", "OBSOLETE", "common-cpu"),
}
_ARM_TYPES = ("t2a-",)


def size_of(name: str) -> tuple[int, int, int]:
    """vCPUs, memory in MiB and GPUs of a machine type."""
    if custom := _CUSTOM.fullmatch(name):
        return int(custom[2]), int(custom[3]), 0
    return MACHINE_TYPES[name]


def has_machine_type(zone: str, name: str) -> bool:
    """Whether a zone offers a machine type."""
    custom = _CUSTOM.fullmatch(name)
    if custom is None:
        return offers(zone, name)
    vcpus, memory = int(custom[2]), int(custom[3])
    return (vcpus == 1 or vcpus % 2 == 0) and memory % 256 == 0


def machine_type(name: str) -> dict[str, Any]:
    cpus, memory, gpus = size_of(name)
    gpu = _GPUS_OF_TYPES.get(name, "")
    accelerators = [{"guestAcceleratorType": gpu, "guestAcceleratorCount": gpus}]
    return {
        "name": name,
        "guestCpus": cpus,
        "memoryMb": memory,
        "architecture": "ARM64" if name.startswith(_ARM_TYPES) else "X86_64",
        "accelerators": accelerators if gpus else [],
    }


def accelerator_types(zone: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "maximumCardsPerInstance": most, "zone": f"{API}/zones/{zone}"}
        for name, (zones, most) in _ACCELERATORS.items()
        if zone in zones
    ]


def image(project: str, name: str) -> dict[str, Any]:
    """The record of an image that exists."""
    families = {n: f for (p, f), n in FAMILIES.items() if p == project}
    owner, state, family = _REPLACED.get(name, ("", "", families.get(name, "")))
    record: dict[str, Any] = {
        "name": name,
        "family": family,
        "diskSizeGb": "50" if project == "deeplearning-platform-release" else "10",
        "architecture": "ARM64" if "arm64" in name else "X86_64",
        "selfLink": f"{API}/projects/{project}/global/images/{name}",
    }
    if owner == project:
        newer = f"{API}/projects/{project}/global/images/{FAMILIES[project, family]}"
        record["deprecated"] = {"state": state, "replacement": newer}
    return record


def image_exists(project: str, name: str) -> bool:
    current = {n for (p, _), n in FAMILIES.items() if p == project}
    return name in current or _REPLACED.get(name, ("",))[0] == project


def is_obsolete(project: str, name: str) -> bool:
    """Whether Google creates no disks from an image any more."""
    owner, state, _ = _REPLACED.get(name, ("", "", ""))
    return owner == project and state != "DEPRECATED"


def quota_metrics(name: str, accelerators: dict[str, int], market: str) -> dict[str, float]:
    """What an instance takes of the quotas for CPUs and GPUs."""
    cpus, _, gpus = size_of(name)
    prefix = "PREEMPTIBLE_" if market == "spot" else ""
    family = name.partition("-")[0].upper()
    own = "CPUS" if family in ("N1", "E2", "CUSTOM") or prefix else f"{family}_CPUS"
    taken: dict[str, float] = {f"{prefix}{own}": cpus, "CPUS_ALL_REGIONS": cpus}
    attached = {**accelerators, **({_GPUS_OF_TYPES[name]: gpus} if gpus else {})}
    for gpu, count in attached.items():
        model = gpu.upper().replace("NVIDIA-TESLA-", "NVIDIA-").replace("-", "_")
        taken[f"{prefix}{model}_GPUS"] = count
        taken["GPUS_ALL_REGIONS"] = taken.get("GPUS_ALL_REGIONS", 0) + count
    return taken


def zones_of(region: str) -> list[str]:
    return [zone for zone, owner in REGION_OF.items() if owner == region]
