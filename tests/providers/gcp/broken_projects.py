"""Mistakes in cluster files and Google Cloud projects, one at a time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal.providers.gcp import iam_permissions
from tests.providers.fixes import FixableFile
from tests.providers.gcp import gcloud_cli
from tests.providers.gcp.gcp_bed import cluster_file
from tests.simcloud.cloud import SimCloud
from tests.simcloud.gce import user_credentials
from tests.simcloud.gce_store import PROJECT

_LOGIN = ".config/gcloud/application_default_credentials.json"
SERVICE_ACCOUNT = f"given@{PROJECT}.iam.gserviceaccount.com"
DEFAULT_SUBNET = "regions/us-west1/subnetworks/default"


@dataclass
class Scenario(FixableFile):
    """A cluster file with one head, and a project."""

    cloud: SimCloud = field(kw_only=True)

    def __post_init__(self) -> None:
        self.file = {**copy.deepcopy(cluster_file()), "max_workers": 4}
        self.worker.update(min_workers=0, max_workers=4)

    @property
    def provider(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.file["provider"]
        return settings

    def run_command(self, command: str) -> None:
        if command == "gcloud auth application-default login":
            self.cloud.faults.revoked.discard("laptop")
            self.home[_LOGIN] = json.dumps(user_credentials())
        elif command == "shoal iam-policy --cloud gcp > shoal-role.json":
            role = iam_permissions.caller_role()
            (self.directory / "shoal-role.json").write_text(json.dumps(role))
        else:
            gcloud_cli.run(command, self.cloud.gce, self.directory)


@dataclass(frozen=True)
class Mistake:
    """A part of the finding that preflight reports, and how to make the mistake."""

    message: str
    apply: Callable[[Scenario], object]


def _no_credentials(scenario: Scenario) -> None:
    scenario.environment.update(GOOGLE_APPLICATION_CREDENTIALS=None, NO_GCE_CHECK="true")


def _missing_key_file(scenario: Scenario) -> None:
    scenario.environment.update(GOOGLE_APPLICATION_CREDENTIALS="/nowhere.json")


def _expired(scenario: Scenario) -> None:
    scenario.cloud.faults.revoke_credentials("laptop")


def _project(scenario: Scenario) -> None:
    scenario.provider["project_id"] = "another-project"
    scenario.environment["GOOGLE_CLOUD_PROJECT"] = PROJECT


def _zone(zone: str) -> Callable[[Scenario], object]:
    return lambda scenario: scenario.provider.update(availability_zone=zone)


def _head(**config: Any) -> Callable[[Scenario], object]:
    return lambda scenario: scenario.head.update(config)


def _head_in(zone: str, **config: Any) -> Callable[[Scenario], object]:
    def apply(scenario: Scenario) -> None:
        _zone(zone)(scenario)
        scenario.head.update(config)

    return apply


def _disk(**parameters: Any) -> Callable[[Scenario], object]:
    def apply(scenario: Scenario) -> None:
        scenario.head["disks"][0]["initializeParams"].update(parameters)

    return apply


def _gpus(name: str, count: int) -> list[dict[str, Any]]:
    return [{"acceleratorType": name, "acceleratorCount": count}]


def _quota(metric: str, limit: float, *, everywhere: bool = False) -> Callable[[Scenario], object]:
    def apply(scenario: Scenario) -> None:
        region = None if everywhere else "us-west1"
        scenario.cloud.gce.calls.launcher.quotas[region, metric] = limit

    return apply


def _workers(count: int, then: Callable[[Scenario], object]) -> Callable[[Scenario], object]:
    def apply(scenario: Scenario) -> None:
        scenario.worker["min_workers"] = count
        then(scenario)

    return apply


def _spot_quota(scenario: Scenario) -> None:
    scenario.head["scheduling"] = {"provisioningModel": "SPOT"}
    scenario.cloud.gce.calls.launcher.quotas["us-west1", "PREEMPTIBLE_CPUS"] = 1


def _gpu_quota(scenario: Scenario) -> None:
    scenario.head["guestAccelerators"] = _gpus("nvidia-tesla-t4", 2)
    scenario.provider["availability_zone"] = "us-west1-a"
    scenario.cloud.gce.calls.launcher.quotas["us-west1", "NVIDIA_T4_GPUS"] = 1


def _denied(*permissions: str) -> Callable[[Scenario], object]:
    return lambda scenario: scenario.cloud.gce.denied.update(permissions)


def _disabled(service: str) -> Callable[[Scenario], object]:
    return lambda scenario: scenario.cloud.gce.disabled_apis.add(service)


def _policy(constraint: str) -> Callable[[Scenario], object]:
    return lambda scenario: scenario.cloud.gce.store.constraints.add(f"constraints/{constraint}")


def _named_account(scenario: Scenario) -> None:
    scenario.provider["service_account"] = SERVICE_ACCOUNT


def _unusable_account(scenario: Scenario) -> None:
    give_account(scenario.cloud)
    _named_account(scenario)
    scenario.cloud.gce.denied.add("iam.serviceAccounts.actAs")


def give_account(cloud: SimCloud) -> None:
    """Have an administrator create a service account that may do what a cluster's own may."""
    iam = cloud.gce.iam
    iam.accounts[SERVICE_ACCOUNT] = {"email": SERVICE_ACCOUNT, "description": "an admin's"}
    iam.know(SERVICE_ACCOUNT)
    permissions = iam_permissions.cluster_permissions()
    iam.roles["given"] = {"includedPermissions": permissions}
    binding = {"role": "given", "members": [f"serviceAccount:{SERVICE_ACCOUNT}"]}
    iam.policy["bindings"].append(binding)


def restore(cloud: SimCloud) -> None:
    """Undo every mistake, so that the next test finds the project as it was."""
    gce = cloud.gce
    for changed in (
        cloud.faults.revoked,
        gce.denied,
        gce.disabled_apis,
        gce.store.constraints,
        gce.store.firewalls,
        gce.store.routers,
        gce.calls.launcher.quotas,
        gce.iam.accounts,
        gce.iam.account_policies,
        gce.iam.roles,
        gce.iam.policy["bindings"],
    ):
        changed.clear()


def _private_head(scenario: Scenario) -> None:
    scenario.head["networkInterfaces"] = [{"subnetwork": DEFAULT_SUBNET}]
    scenario.cloud.gce.store.routers["us-west1"] = [
        {"name": "r", "network": "global/networks/default", "nats": [{"name": "n"}]}
    ]


def _no_disk(scenario: Scenario) -> None:
    del scenario.file["available_node_types"]["worker"]
    del scenario.head["disks"]


def _os_login(scenario: Scenario) -> None:
    scenario.head["metadata"] = {"items": [{"key": "enable-oslogin", "value": "TRUE"}]}


MISTAKES = {
    "no credentials": Mistake("no Google credentials", _no_credentials),
    "missing key file": Mistake("no Google credentials", _missing_key_file),
    "expired": Mistake("the Google credentials are expired or revoked", _expired),
    "project": Mistake("there is no project another-project", _project),
    "compute API": Mistake("Google refused compute", _disabled("compute")),
    "IAM API": Mistake("Google refused iam", _disabled("iam")),
    "resource manager API": Mistake("Google refused cloud", _disabled("cloudresourcemanager")),
    "region": Mistake("there is no region us-wst1", lambda s: s.provider.update(region="us-wst1")),
    "zone": Mistake("there is no zone us-west1-z in us-west1", _zone("us-west1-z")),
    "type": Mistake("there is no machine type n1-standrad-2", _head(machineType="n1-standrad-2")),
    "type elsewhere": Mistake(
        "n2-standard-2 is not offered in us-west1-c",
        _head_in("us-west1-c", machineType="n2-standard-2"),
    ),
    "custom type": Mistake("there is no machine type custom-3", _head(machineType="custom-3-3000")),
    "accelerator": Mistake(
        "there is no accelerator nvidia-tesla-t44",
        _head_in("us-west1-a", guestAccelerators=_gpus("nvidia-tesla-t44", 1)),
    ),
    "accelerator count": Mistake(
        "an instance has at most 4 nvidia-tesla-t4",
        _head_in("us-west1-a", guestAccelerators=_gpus("nvidia-tesla-t4", 5)),
    ),
    "accelerator elsewhere": Mistake(
        "nvidia-tesla-t4 is not offered in us-west1-c",
        _head_in("us-west1-c", guestAccelerators=_gpus("nvidia-tesla-t4", 1)),
    ),
    "accelerator on e2": Mistake(
        "nvidia-tesla-t4 cannot be attached to e2-standard-2",
        _head(machineType="e2-standard-2", guestAccelerators=_gpus("nvidia-tesla-t4", 1)),
    ),
    "migration": Mistake(
        "head cannot be migrated",
        _head(machineType="g2-standard-4", scheduling={"onHostMaintenance": "MIGRATE"}),
    ),
    "image": Mistake(
        "there is no image debian-none",
        _disk(sourceImage="projects/debian-cloud/global/images/debian-none"),
    ),
    "obsolete image": Mistake(
        "the image common-cpu-v20200101 is obsolete",
        _disk(
            sourceImage="projects/deeplearning-platform-release/global/images/common-cpu-v20200101"
        ),
    ),
    "architecture": Mistake(
        "is for ARM64, but n1-standard-2 is X86_64",
        _disk(sourceImage="projects/debian-cloud/global/images/family/debian-12-arm64"),
    ),
    "small disk": Mistake("the boot disk of 5 GB is smaller", _disk(diskSizeGb=5)),
    "no disk": Mistake("head has no boot disk", _no_disk),
    "template": Mistake(
        "sourceInstanceTemplate of head cannot be read",
        _head(sourceInstanceTemplate="global/instanceTemplates/none"),
    ),
    "private head": Mistake("the head has no public address", _private_head),
    "subnet": Mistake(
        "the network of head cannot be used",
        _head(
            networkInterfaces=[
                {"subnetwork": "regions/us-west1/subnetworks/none", "accessConfigs": [{}]}
            ]
        ),
    ),
    "quota": Mistake("needs 8 of the quota CPUS in us-west1", _workers(3, _quota("CPUS", 4))),
    "head quota": Mistake("needs 2 of the quota CPUS in us-west1", _quota("CPUS", 1)),
    "spot quota": Mistake("needs 2 of the quota PREEMPTIBLE_CPUS", _spot_quota),
    "global quota": Mistake(
        "the quota CPUS_ALL_REGIONS in all regions together",
        _workers(3, _quota("CPUS_ALL_REGIONS", 4, everywhere=True)),
    ),
    "GPU quota": Mistake("needs 2 of the quota NVIDIA_T4_GPUS in us-west1", _gpu_quota),
    "permission": Mistake(
        "you lack the permission compute.instances.create", _denied("compute.instances.create")
    ),
    "account permissions": Mistake(
        "you lack iam.roles.create, iam.serviceAccounts.create",
        _denied("iam.roles.create", "iam.serviceAccounts.create"),
    ),
    "firewall": Mistake("you may not create firewall rules", _denied("compute.firewalls.create")),
    "named account": Mistake(f"there is no service account {SERVICE_ACCOUNT}", _named_account),
    "unusable account": Mistake(
        f"you may not use the service account {SERVICE_ACCOUNT}", _unusable_account
    ),
    "OS Login by policy": Mistake(
        "the organisation requires OS Login", _policy("compute.requireOsLogin")
    ),
    "public addresses by policy": Mistake(
        "the organisation forbids public addresses", _policy("compute.vmExternalIpAccess")
    ),
    "OS Login in the file": Mistake("head uses OS Login", _os_login),
    "misspelt key": Mistake(
        "node_config cannot be passed to Compute Engine: minCPUPlatform",
        _head(minCPUPlatform="Intel Skylake"),
    ),
    "wrong value": Mistake(
        "cannot be passed to Compute Engine: scheduling.automaticRestart",
        _head(scheduling={"automaticRestart": "yes"}),
    ),
    "label": Mistake(
        "Google does not accept the label Team",
        lambda s: s.file.update(shoal={"tags": {"Team": "a"}}),
    ),
    "max run duration": Mistake(
        "max_run_duration is 10s", lambda s: s.provider.update(max_run_duration="10s")
    ),
    "mount": Mistake(
        "nowhere does not exist", lambda s: s.file.update(file_mounts={"/data": "./nowhere"})
    ),
    "private key": Mistake(
        "nowhere.pem does not exist",
        lambda s: s.file["auth"].update(ssh_private_key="~/.ssh/nowhere.pem"),
    ),
}

# One of each kind of lookup and of fix.
COMMON = (
    "no credentials", "expired", "project", "compute API", "zone", "type elsewhere",
    "accelerator elsewhere", "obsolete image", "private head", "quota", "global quota",
    "permission", "firewall", "unusable account", "OS Login by policy", "misspelt key",
)  # fmt: skip
