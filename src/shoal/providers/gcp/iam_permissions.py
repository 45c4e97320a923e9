"""The permissions that people and clusters need in a project. Pure.

`shoal iam-policy --cloud gcp` prints the role for people; a cluster's service account has the
other one.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.providers.gcp import names

# Custom roles of the project. One that was deleted keeps its id for weeks, so they are per project
# and stay; a role alone grants nothing.
CLUSTER_ROLE = "shoal_cluster"
CALLER_ROLE = "shoal_user"

_INSTANCE_TYPE = "compute.googleapis.com/Instance"
_DISK_TYPE = "compute.googleapis.com/Disk"

_LIFECYCLE = (
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.disks.delete",
    "compute.disks.get",
    "compute.disks.list",
    "compute.disks.use",
    "compute.disks.useReadOnly",
    "compute.images.get",
    "compute.images.useReadOnly",
    "compute.instanceTemplates.get",
    "compute.instanceTemplates.useReadOnly",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getGuestAttributes",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.instances.setTags",
    "compute.instances.start",
    "compute.instances.stop",
    "compute.machineImages.get",
    "compute.machineImages.useReadOnly",
    "compute.machineTypes.get",
    "compute.acceleratorTypes.get",
    "compute.projects.get",
    "compute.regions.get",
    "compute.subnetworks.get",
    "compute.subnetworks.list",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
    "compute.zones.get",
    "compute.zones.list",
)

FIREWALL = (
    "compute.firewalls.create",
    "compute.firewalls.delete",
    "compute.firewalls.get",
    "compute.firewalls.list",
    "compute.firewalls.update",
    "compute.globalOperations.get",
    "compute.networks.get",
    "compute.networks.updatePolicy",
)
SERVICE_ACCOUNTS = (
    "iam.roles.create",
    "iam.roles.get",
    "iam.roles.undelete",
    "iam.roles.update",
    "iam.serviceAccounts.create",
    "iam.serviceAccounts.delete",
    "iam.serviceAccounts.get",
    "iam.serviceAccounts.getIamPolicy",
    "iam.serviceAccounts.list",
    "iam.serviceAccounts.setIamPolicy",
    "resourcemanager.projects.getIamPolicy",
    "resourcemanager.projects.setIamPolicy",
)
ACT_AS = ("iam.serviceAccounts.actAs",)
# What preflight reads, besides; without them it warns.
_LOOKUPS = (
    "compute.acceleratorTypes.list",
    "compute.regions.list",
    "compute.routers.list",
    "serviceusage.services.use",
)

# For files that name instance templates or machine images, and for instances whose host keys are
# not in guest attributes.
_SOMETIMES = (
    "compute.instanceTemplates.get",
    "compute.instances.getSerialPortOutput",
    "compute.machineImages.get",
    "compute.machineImages.useReadOnly",
)

LAUNCH: Sequence[str] = _LIFECYCLE
"""What a launch needs besides firewall rules and a service account."""


def cluster_permissions() -> list[str]:
    """The permissions of a cluster's own service account, on its own instances and disks."""
    return sorted({*_LIFECYCLE, *_SOMETIMES})


def caller_permissions() -> list[str]:
    """The permissions of a person who brings clusters up and down."""
    return sorted({*_LIFECYCLE, *_SOMETIMES, *FIREWALL, *SERVICE_ACCOUNTS, *ACT_AS, *_LOOKUPS})


def caller_role() -> dict[str, object]:
    """The custom role for a person, as `gcloud iam roles create --file` reads it."""
    description = "brings Ray clusters up and down with Shoal"
    return role("Shoal user", description, caller_permissions())


def cluster_role() -> dict[str, object]:
    """The custom role of the service accounts of clusters."""
    description = "instances of its own cluster, by a condition on their names"
    return role("Shoal cluster", description, cluster_permissions())


def role(title: str, description: str, permissions: Sequence[str]) -> dict[str, object]:
    """A custom role, as `gcloud iam roles create --file` and the API read it."""
    return {
        "title": title,
        "description": description,
        "stage": "GA",
        "includedPermissions": list(permissions),
    }


def condition(cluster: str) -> dict[str, str]:
    """The condition that limits a role to the instances and disks of a cluster, which its names
    begin with; other kinds of resources, such as subnetworks, have no names of the cluster."""
    prefix = names.instance_prefix(cluster)
    own = " || ".join(
        f'(resource.type == "{kind}" && resource.name.extract("/{collection}/{{name}}")'
        f'.startsWith("{prefix}"))'
        for kind, collection in ((_INSTANCE_TYPE, "instances"), (_DISK_TYPE, "disks"))
    )
    others = " && ".join(f'resource.type != "{kind}"' for kind in (_INSTANCE_TYPE, _DISK_TYPE))
    return {
        "title": f"instances of {cluster}"[:100],
        "description": "created by Shoal",
        "expression": f"{own} || ({others})",
    }
