"""What Compute Engine refuses by the body of a request alone, and how it completes the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.simcloud import gce_offers
from tests.simcloud.calls import ApiError
from tests.simcloud.gce_store import FAMILIES
from tests.simcloud.gce_wire import fold, invalid, not_found

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_IMAGE = re.compile(r"(?:.*/)?projects/([^/]+)/global/images/(family/)?([^/]+)")
_PROPERTIES = frozenset(
    [
        "advancedMachineFeatures",
        "canIpForward",
        "confidentialInstanceConfig",
        "description",
        "disks",
        "guestAccelerators",
        "keyRevocationActionType",
        "labels",
        "localSsdEncryptionMode",
        "machineType",
        "metadata",
        "minCpuPlatform",
        "networkInterfaces",
        "networkPerformanceConfig",
        "privateIpv6GoogleAccess",
        "reservationAffinity",
        "resourcePolicies",
        "scheduling",
        "serviceAccounts",
        "shieldedInstanceConfig",
        "tags",
        "workloadIdentityConfig",
    ]
)
_INSTANCE_ONLY = frozenset(
    [
        "name",
        "hostname",
        "deletionProtection",
        "displayDevice",
        "params",
        "sourceMachineImage",
        "shieldedInstanceIntegrityPolicy",
        "zone",
    ]
)


class Refused(Exception):
    """A call that Google refuses."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def check_name(name: object, field: str = "resource.name") -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise Refused(invalid(field, name, why))


def check_labels(labels: Mapping[str, Any], field: str = "resource.labels") -> None:
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(str(value)):
            why = (
                "Label keys must start with a lowercase character, keys and values may contain "
                "lowercase letters, digits, underscores and dashes, and have 63 characters."
            )
            raise Refused(invalid(field, f"{key}: {value}", why))
    if len(labels) > 64:
        raise Refused(invalid(field, len(labels), "A resource can have up to 64 labels."))


def read_instance(body: Mapping[str, Any], zone: str, *, bulk: bool) -> dict[str, Any]:
    """The instance that a body describes, as Google takes it."""
    allowed = _PROPERTIES if bulk else _PROPERTIES | _INSTANCE_ONLY
    for field in body:
        if field not in allowed:
            where = "instance_properties" if bulk else "resource"
            message = f'Invalid JSON payload received. Unknown name "{field}" at "{where}"'
            raise Refused(ApiError("badRequest", message, 400))
    resource = {key: value for key, value in body.items() if value is not None}
    resource["scheduling"] = dict(fold(resource.get("scheduling") or {}))
    check_labels(resource.get("labels") or {})
    for tag in (resource.get("tags") or {}).get("items") or ():
        check_name(tag, "resource.tags.items")
    _check_machine_type(str(resource.get("machineType", "")), zone, bulk=bulk)
    if not resource.get("networkInterfaces"):
        message = "At least one network interface is required."
        raise Refused(invalid("resource.networkInterfaces", "", message))
    if not resource.get("disks"):
        raise Refused(invalid("resource.disks", "[]", "No disks are specified."))
    for disk in resource["disks"]:
        _check_disk(disk, bulk=bulk)
    _check_scheduling(resource)
    return resource


def _check_machine_type(given: str, zone: str, *, bulk: bool) -> None:
    name = given.rpartition("/")[2]
    field = "resource.machineType"
    if bulk and "/" in given:
        raise Refused(invalid(field, given, "Machine type must be a name, not a URL."))
    if not bulk and f"zones/{zone}/machineTypes/{name}" not in given:
        why = "The URL is malformed." if "/" not in given else "The zone does not match."
        raise Refused(invalid(field, given, why))
    if not gce_offers.has_machine_type(zone, name):
        path = f"projects/sim-project/zones/{zone}/machineTypes/{name}"
        why = f"Machine type with name '{name}' does not exist in zone '{zone}'. ({path})"
        raise Refused(ApiError("invalid", f"Invalid value for field '{field}': {why}", 400))


def _check_disk(disk: Mapping[str, Any], *, bulk: bool) -> None:
    if bulk and disk.get("source") and disk.get("mode") != "READ_ONLY":
        message = "Disks attached by a bulk request must be read-only."
        raise Refused(invalid("resource.disks[0].source", disk["source"], message))
    params = disk.get("initializeParams") or {}
    check_labels(params.get("labels") or {}, "resource.disks[0].initializeParams.labels")
    if image := params.get("sourceImage"):
        project, name = find_image(str(image))
        if gce_offers.is_obsolete(project, name):
            message = "The referenced image is obsolete and cannot be used to create disks."
            raise Refused(invalid("resource.disks[0].initializeParams.sourceImage", image, message))
        least, size = int(gce_offers.image(project, name)["diskSizeGb"]), params.get("diskSizeGb")
        if size and int(size) < least:
            message = f"Requested disk size cannot be smaller than the image size ({least} GB)"
            raise Refused(invalid("resource.disks[0].initializeParams.diskSizeGb", size, message))
    elif disk.get("boot") and not disk.get("source"):
        message = "No source image or disk is specified for the boot disk."
        raise Refused(invalid("resource.disks[0]", "", message))


def find_image(image: str) -> tuple[str, str]:
    """Project and name of an image, given by its own name or that of its family."""
    match = _IMAGE.fullmatch(image)
    if not match:
        why = "The URL is malformed."
        raise Refused(invalid("resource.disks[0].initializeParams.sourceImage", image, why))
    project, family, name = match.groups()
    if family and (project, name) in FAMILIES:
        return project, FAMILIES[project, name]
    if not family and gce_offers.image_exists(project, name):
        return project, name
    raise Refused(not_found(f"projects/{project}/global/images/{family or ''}{name}"))


def _check_scheduling(resource: Mapping[str, Any]) -> None:
    scheduling = resource["scheduling"]
    is_spot = scheduling.get("preemptible") or scheduling.get("provisioningModel") == "SPOT"
    field = "resource.scheduling"
    if is_spot and scheduling.get("automaticRestart"):
        message = "Scheduling must have automaticRestart set to false for a preemptible VM."
        raise Refused(invalid(field, "automaticRestart", message))
    if scheduling.get("instanceTerminationAction") and not (
        scheduling.get("provisioningModel") == "SPOT" or scheduling.get("maxRunDuration")
    ):
        message = "instanceTerminationAction requires the SPOT provisioning model."
        raise Refused(invalid(field, "instanceTerminationAction", message))
    gpus = (
        resource.get("guestAccelerators")
        or gce_offers.size_of(str(resource["machineType"]).rpartition("/")[2])[2]
    )
    if gpus and not is_spot and scheduling.get("onHostMaintenance") != "TERMINATE":
        message = "Instances with guest accelerators do not support live migration."
        raise Refused(ApiError("badRequest", message, 400))
