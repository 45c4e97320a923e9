"""Builds the bodies of insert and bulkInsert from a `node_config`. Pure.

`node_config` uses Google's own names and is passed unchanged, except for what bulkInsert writes in
another way, for Ray's habits that Google tolerates, and for defaults where the file sets no value.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.gcp import names, startup_script
from shoal.providers.gcp.disks import RETAINED
from shoal.providers.vm.launch_options import LaunchOption, Market

DEFAULT_TYPE = "n1-standard-2"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Families of machine types that have GPUs.
_GPU_FAMILIES = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")
# What bulkInsert cannot do.
_SINGLE_ONLY = ("sourceMachineImage", "hostname", "deletionProtection", "displayDevice", "params")


def machine_type(config: Mapping[str, Any]) -> str:
    """The machine type, of which the file may have the name or a URL."""
    return str(config.get("machineType") or DEFAULT_TYPE).rpartition("/")[2]


def scheduling(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `scheduling` section as one object: Ray's examples write it as a list."""
    value = config.get("scheduling") or {}
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(
            "scheduling in node_config is not a mapping",
            why=f"it is {value!r}",
            fix="scheduling: {provisioningModel: SPOT}",
        )
    return {key: setting for entry in entries for key, setting in entry.items()}


def market(config: Mapping[str, Any]) -> Market:
    settings = scheduling(config)
    is_spot = settings.get("preemptible") or settings.get("provisioningModel") == "SPOT"
    return "spot" if is_spot else "on-demand"


def accelerators(config: Mapping[str, Any]) -> dict[str, int]:
    """The GPUs that are attached to an instance, by type; not those of its machine type."""
    return {
        str(entry.get("acceleratorType", "")).rpartition("/")[2]: int(
            entry.get("acceleratorCount") or 0
        )
        for entry in config.get("guestAccelerators") or ()
    }


def has_gpus(config: Mapping[str, Any]) -> bool:
    """Whether an instance has GPUs, attached or of its machine type."""
    return bool(accelerators(config)) or machine_type(config).startswith(_GPU_FAMILIES)


def needs_single_insert(config: Mapping[str, Any]) -> bool:
    """Whether bulkInsert does not accept this configuration."""
    writable = any(
        disk.get("source") and disk.get("mode") != "READ_ONLY" for disk in config.get("disks") or ()
    )
    return writable or any(config.get(key) for key in _SINGLE_ONLY)


def properties(
    config: Mapping[str, Any],
    option: LaunchOption,
    *,
    cluster: str,
    tags: Mapping[str, str],
    metadata: Mapping[str, str],
    service_account: str = "",
    own_labels: Mapping[str, str] | None = None,
    internal_only: bool = False,
    limits: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What every instance of a launch has, in the form of bulkInsert. `metadata` is Shoal's own;
    `service_account` is for instances to which the file gives none. With `internal_only`, instances
    get no public address. `limits` are added to the scheduling."""
    request = copy.deepcopy({k: v for k, v in config.items() if v is not None})
    request["machineType"] = option.instance_type
    request["scheduling"] = {
        **_scheduling_for(scheduling(config), option.market, tags),
        **(limits or {}),
    }
    if has_gpus({**config, "machineType": option.instance_type}):
        # Google cannot migrate such an instance, and refuses one that says nothing about it.
        request["scheduling"].setdefault("onHostMaintenance", "TERMINATE")
    labels = {**(request.get("labels") or {}), **names.as_labels(own_labels or {})}
    request["labels"] = {**labels, **names.as_labels(tags)}
    for disk in request.get("disks") or ():
        disk.setdefault("autoDelete", True)
        if "source" not in disk and disk.get("initializeParams") is not None:
            parameters = disk["initializeParams"]
            parameters["labels"] = {
                **(parameters.get("labels") or {}),
                **names.as_labels({k: v for k, v in tags.items() if k.startswith("shoal-")}),
                **({} if disk["autoDelete"] else {RETAINED: "true"}),
            }
    interfaces = request.get("networkInterfaces")
    if not interfaces:
        subnetwork = f"regions/{_region(option.subnet.zone)}/subnetworks/{option.subnet.id}"
        access = {"name": "External NAT", "type": "ONE_TO_ONE_NAT"}
        interface: dict[str, Any] = {"subnetwork": subnetwork}
        if not internal_only:
            interface["accessConfigs"] = [access]
        request["networkInterfaces"] = [interface]
    items = [*((request.get("tags") or {}).get("items") or ()), names.network_tag(cluster)]
    request["tags"] = {"items": list(dict.fromkeys(items))}
    own = names.metadata_values((request.get("metadata") or {}).get("items"))
    request["metadata"] = {"items": names.metadata_items(_merged_metadata(own, metadata, tags))}
    if service_account and not request.get("serviceAccounts"):
        request["serviceAccounts"] = [{"email": service_account, "scopes": [_SCOPE]}]
    return request


def bulk_request(properties: Mapping[str, Any], instances: Sequence[str]) -> dict[str, Any]:
    """The body of bulkInsert. Without `minCount` Google would delete a partial fill."""
    return {
        "count": str(len(instances)),
        "minCount": "1",
        "perInstanceProperties": {name: {} for name in instances},
        "instanceProperties": dict(properties),
    }


def insert_request(properties: Mapping[str, Any], name: str, zone: str) -> dict[str, Any]:
    """The body of insert, which wants URLs where bulkInsert wants names."""
    type_name = properties["machineType"]
    request = {
        **properties,
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{type_name}",
    }
    accelerators = [
        {
            **entry,
            "acceleratorType": f"zones/{zone}/acceleratorTypes/"
            f"{str(entry.get('acceleratorType', '')).rpartition('/')[2]}",
        }
        for entry in properties.get("guestAccelerators") or ()
    ]
    return {**request, **({"guestAccelerators": accelerators} if accelerators else {})}


def _scheduling_for(
    settings: dict[str, Any], market: Market, tags: Mapping[str, str]
) -> dict[str, Any]:
    """The scheduling for a market. The old form of spot instances ends after 24 hours, so it is
    translated. A preempted worker is deleted, since a stopped one keeps costing its disks."""
    result = dict(settings)
    was_preemptible = bool(result.pop("preemptible", False))
    if market == "spot":
        result["provisioningModel"] = "SPOT"
        result["automaticRestart"] = False
        if tags.get("ray-node-type") == "worker":
            result.setdefault("instanceTerminationAction", "DELETE")
        return result
    if was_preemptible or result.get("provisioningModel") == "SPOT":
        # The fallback from spot.
        for key in ("provisioningModel", "instanceTerminationAction", "automaticRestart"):
            result.pop(key, None)
    return result


def _merged_metadata(
    own: Mapping[str, str], shoal: Mapping[str, str], tags: Mapping[str, str]
) -> dict[str, str]:
    """The metadata of the file and Shoal's. SSH keys are added to those of the file."""
    merged = {**shoal, **own, **startup_script.merge(own, shoal)}
    if "ssh-keys" in own and "ssh-keys" in shoal:
        lines = [*own["ssh-keys"].splitlines(), *shoal["ssh-keys"].splitlines()]
        merged["ssh-keys"] = "\n".join(dict.fromkeys(lines))
    merged[names.METADATA_TAGS] = json.dumps(
        {key: value for key, value in tags.items() if names.label_value(value) != value}
    )
    return merged


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]
