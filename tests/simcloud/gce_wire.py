"""Google's wire format: which call a request is, and the body of a refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.simcloud.calls import ApiError, Launch
from tests.simcloud.faults import Trouble

_COMPUTE = "/compute/v1/projects/{project}"
_ZONE, _REGION, _GLOBAL = (
    f"{_COMPUTE}/zones/{{zone}}",
    f"{_COMPUTE}/regions/{{region}}",
    f"{_COMPUTE}/global",
)
_IAM = "/v1/projects/{project}"

# Method and path of each call, by its name in Google's discovery documents.
_ROUTES = {
    "compute.projects.get": ("GET", _COMPUTE),
    "compute.projects.setCommonInstanceMetadata": (
        "POST",
        f"{_COMPUTE}/setCommonInstanceMetadata",
    ),
    "compute.zones.list": ("GET", f"{_COMPUTE}/zones"),
    "compute.zones.get": ("GET", _ZONE),
    "compute.regions.list": ("GET", f"{_COMPUTE}/regions"),
    "compute.regions.get": ("GET", _REGION),
    "compute.machineTypes.list": ("GET", f"{_ZONE}/machineTypes"),
    "compute.machineTypes.get": ("GET", f"{_ZONE}/machineTypes/{{name}}"),
    "compute.acceleratorTypes.list": ("GET", f"{_ZONE}/acceleratorTypes"),
    "compute.acceleratorTypes.get": ("GET", f"{_ZONE}/acceleratorTypes/{{name}}"),
    "compute.routers.list": ("GET", f"{_REGION}/routers"),
    "compute.images.getFromFamily": ("GET", f"{_GLOBAL}/images/family/{{name}}"),
    "compute.images.get": ("GET", f"{_GLOBAL}/images/{{name}}"),
    "compute.instanceTemplates.get": ("GET", f"{_GLOBAL}/instanceTemplates/{{name}}"),
    "compute.machineImages.get": ("GET", f"{_GLOBAL}/machineImages/{{name}}"),
    "compute.networks.list": ("GET", f"{_GLOBAL}/networks"),
    "compute.networks.get": ("GET", f"{_GLOBAL}/networks/{{name}}"),
    "compute.subnetworks.list": ("GET", f"{_REGION}/subnetworks"),
    "compute.subnetworks.get": ("GET", f"{_REGION}/subnetworks/{{name}}"),
    "compute.firewalls.list": ("GET", f"{_GLOBAL}/firewalls"),
    "compute.firewalls.get": ("GET", f"{_GLOBAL}/firewalls/{{name}}"),
    "compute.firewalls.insert": ("POST", f"{_GLOBAL}/firewalls"),
    "compute.firewalls.patch": ("PATCH", f"{_GLOBAL}/firewalls/{{name}}"),
    "compute.firewalls.delete": ("DELETE", f"{_GLOBAL}/firewalls/{{name}}"),
    "compute.instances.aggregatedList": ("GET", f"{_COMPUTE}/aggregated/instances"),
    "compute.instances.list": ("GET", f"{_ZONE}/instances"),
    "compute.instances.insert": ("POST", f"{_ZONE}/instances"),
    "compute.instances.bulkInsert": ("POST", f"{_ZONE}/instances/bulkInsert"),
    "compute.instances.get": ("GET", f"{_ZONE}/instances/{{name}}"),
    "compute.instances.delete": ("DELETE", f"{_ZONE}/instances/{{name}}"),
    "compute.instances.stop": ("POST", f"{_ZONE}/instances/{{name}}/stop"),
    "compute.instances.start": ("POST", f"{_ZONE}/instances/{{name}}/start"),
    "compute.instances.setLabels": ("POST", f"{_ZONE}/instances/{{name}}/setLabels"),
    "compute.instances.setMetadata": ("POST", f"{_ZONE}/instances/{{name}}/setMetadata"),
    "compute.instances.setTags": ("POST", f"{_ZONE}/instances/{{name}}/setTags"),
    "compute.instances.getGuestAttributes": (
        "GET",
        f"{_ZONE}/instances/{{name}}/getGuestAttributes",
    ),
    "compute.instances.getSerialPortOutput": ("GET", f"{_ZONE}/instances/{{name}}/serialPort"),
    "compute.disks.aggregatedList": ("GET", f"{_COMPUTE}/aggregated/disks"),
    "compute.disks.list": ("GET", f"{_ZONE}/disks"),
    "compute.disks.get": ("GET", f"{_ZONE}/disks/{{name}}"),
    "compute.disks.delete": ("DELETE", f"{_ZONE}/disks/{{name}}"),
    "compute.zoneOperations.get": ("GET", f"{_ZONE}/operations/{{name}}"),
    "compute.zoneOperations.wait": ("POST", f"{_ZONE}/operations/{{name}}/wait"),
    "compute.regionOperations.get": ("GET", f"{_REGION}/operations/{{name}}"),
    "compute.regionOperations.wait": ("POST", f"{_REGION}/operations/{{name}}/wait"),
    "compute.globalOperations.get": ("GET", f"{_GLOBAL}/operations/{{name}}"),
    "compute.globalOperations.wait": ("POST", f"{_GLOBAL}/operations/{{name}}/wait"),
    "iam.serviceAccounts.list": ("GET", f"{_IAM}/serviceAccounts"),
    "iam.serviceAccounts.create": ("POST", f"{_IAM}/serviceAccounts"),
    "iam.serviceAccounts.setIamPolicy": ("POST", f"{_IAM}/serviceAccounts/{{name}}:setIamPolicy"),
    "iam.serviceAccounts.getIamPolicy": ("POST", f"{_IAM}/serviceAccounts/{{name}}:getIamPolicy"),
    "iam.serviceAccounts.testIamPermissions": (
        "POST",
        f"{_IAM}/serviceAccounts/{{name}}:testIamPermissions",
    ),
    "iam.serviceAccounts.get": ("GET", f"{_IAM}/serviceAccounts/{{name}}"),
    "iam.serviceAccounts.delete": ("DELETE", f"{_IAM}/serviceAccounts/{{name}}"),
    "iam.roles.create": ("POST", f"{_IAM}/roles"),
    "iam.roles.undelete": ("POST", f"{_IAM}/roles/{{name}}:undelete"),
    "iam.roles.get": ("GET", f"{_IAM}/roles/{{name}}"),
    "iam.roles.patch": ("PATCH", f"{_IAM}/roles/{{name}}"),
    "iam.roles.delete": ("DELETE", f"{_IAM}/roles/{{name}}"),
    "cloudresourcemanager.projects.getIamPolicy": ("POST", f"{_IAM}:getIamPolicy"),
    "cloudresourcemanager.projects.setIamPolicy": ("POST", f"{_IAM}:setIamPolicy"),
    "cloudresourcemanager.projects.testIamPermissions": ("POST", f"{_IAM}:testIamPermissions"),
    "cloudresourcemanager.projects.getEffectiveOrgPolicy": (
        "POST",
        f"{_IAM}:getEffectiveOrgPolicy",
    ),
    "cloudresourcemanager.projects.get": ("GET", _IAM),
}


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/:]+)", path))


_COMPILED = [
    (action, method, _pattern(path), action.partition(".")[0])
    for action, (method, path) in _ROUTES.items()
]


def read_route(host: str, method: str, path: str) -> tuple[str, dict[str, str]] | None:
    """The name of the call that a request makes, and the parts of its path."""
    service = host.partition(".")[0]
    if service == "www":  # the host name that older clients use
        service = "compute"
    for action, expected, pattern, owner in _COMPILED:
        if owner == service and expected == method and (match := pattern.fullmatch(path)):
            return action, match.groupdict()
    return None


def error_for(trouble: Trouble, launch: Launch | None) -> ApiError:
    """Google's error for an injected fault."""
    if trouble is Trouble.THROTTLED:
        message = (
            "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service "
            "'compute.googleapis.com' for consumer 'project_number:1234567890'."
        )
        return ApiError("rateLimitExceeded", message, 403)
    if trouble is Trouble.NO_CAPACITY and launch:
        return stockout(launch.zone)
    return ApiError("backendError", "Internal error. Please try again.", 503)


def stockout(zone: str, project: str = "sim-project") -> ApiError:
    message = (
        f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
        "fulfill the request.  Try a different zone, or try again later."
    )
    return ApiError("ZONE_RESOURCE_POOL_EXHAUSTED", message, 503)


_DOMAINS = {"quotaExceeded": "usageLimits", "rateLimitExceeded": "usageLimits"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
}


def render(error: ApiError, service: str) -> dict[str, Any]:
    """The body of a refusal: Compute Engine's has reasons, that of newer services a status."""
    if service == "compute":
        domain = _DOMAINS.get(error.code, "global")
        entry = {"message": error.message, "domain": domain, "reason": error.code}
        body = {"code": error.status, "message": error.message, "errors": [entry]}
    else:
        status = error.code if error.code.isupper() else _STATUSES.get(error.status, "INTERNAL")
        body = {"code": error.status, "message": error.message, "status": status}
    return {"error": body}


def not_found(path: str) -> ApiError:
    return ApiError("notFound", f"The resource '{path}' was not found", 404)


def invalid(field: str, value: object, why: str) -> ApiError:
    message = f"Invalid value for field '{field}': '{value}'. {why}"
    return ApiError("invalid", message, 400)


def denied(permission: str, resource: str) -> ApiError:
    return ApiError("forbidden", f"Required '{permission}' permission for '{resource}'", 403)


def fold(value: Any) -> Any:
    """The one element of a list: Google accepts it where an object is expected."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        return value[0]
    return value
