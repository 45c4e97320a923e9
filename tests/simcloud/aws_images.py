"""AMIs as EC2 has them and moto does not: patches of moto, applied by `aws_backend.py`. Public ones
are found by SSM parameters; those that are made of instances have tags on their snapshots, which
begin some time later."""

from __future__ import annotations

import hashlib
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami, AmiBackend
from moto.ssm.models import Parameter, ParameterDict

from tests.simcloud import amazon_linux, ec2_refusals

# Public SSM parameters of AMIs; moto has only Amazon's own.
_PUBLIC_IMAGES = {
    name: f"ami-{hashlib.sha256(name.encode()).hexdigest()[:17]}"
    for name in (
        *(
            f"/aws/service/canonical/ubuntu/server/22.04/stable/current/{architecture}/hvm/ebs-gp2/ami-id"
            for architecture in ("amd64", "arm64")
        ),
        *(
            f"/aws/service/deeplearning/ami/{architecture}/base-oss-nvidia-driver-gpu-ubuntu-22.04"
            "/latest/ami-id"
            for architecture in ("x86_64", "arm64")
        ),
        "/aws/service/deeplearning/ami/x86_64/base-proprietary-nvidia-driver-gpu-ubuntu-20.04"
        "/latest/ami-id",
    )
}
# The AMI in Ray's own examples.
RAY_EXAMPLE_IMAGE = "ami-0387d929287ab193e"
# Snapshots that have not begun, by AMI.
_unbegun: dict[str, Any] = {}


def apply() -> None:
    """Patch moto."""
    parameters = ParameterDict.__init__
    create_image = AmiBackend.create_image
    mappings_of = Ami.block_device_mappings.fget

    def create_image_with_tags(
        self: Any, instance_id: str, name: str, description: str, tag_specifications: Any
    ) -> Any:
        """EC2 also tags the snapshots of an image, in the call that creates them, and refuses a
        second image of the same name."""
        if any(ami.name == name and ami.instance_id for ami in self.amis.values()):
            raise EC2ClientError("InvalidAMIName.Duplicate", f"AMI name {name} is already in use")
        others = [s for s in tag_specifications if s["ResourceType"] != "snapshot"]
        ami = create_image(self, instance_id, name, description, others)
        for specification in tag_specifications:
            if specification["ResourceType"] == "snapshot":
                tags = {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
                ami.ebs_snapshot.add_tags(tags)
        return ami

    def mappings_of_begun_snapshots(self: Any) -> list[dict[str, Any]]:
        """EC2 names a snapshot once it has begun."""
        mappings: list[dict[str, Any]] = mappings_of(self)
        if self.id in _unbegun:
            del mappings[0]["Ebs"]["SnapshotId"]
        return mappings

    def with_public_images(self: ParameterDict, account_id: str, region_name: str) -> None:
        parameters(self, account_id, region_name)
        for name, image in _PUBLIC_IMAGES.items():
            self[name].append(
                Parameter(account_id, name, image, "String", None, None, None, utcnow(), 1, "text")
            )

    def load_public_images(self: Any) -> None:
        for name, image in _PUBLIC_IMAGES.items():
            architecture = "arm64" if "arm64" in name else "x86_64"
            title = name.removeprefix("/aws/service/").replace("/", "-")
            self.amis[image] = Ami(self, image, name=title, architecture=architecture, public=True)
        self.amis[RAY_EXAMPLE_IMAGE] = Ami(
            self,
            RAY_EXAMPLE_IMAGE,
            name="Deep Learning AMI (Ubuntu)",
            architecture="x86_64",
            public=True,
        )
        self.amis[amazon_linux.IMAGE] = Ami(
            self,
            amazon_linux.IMAGE,
            name="al2023-ami-2023.6.20241010.0-kernel-6.1-x86_64",
            architecture="x86_64",
            root_device_name="/dev/xvda",
            public=True,
        )
        self.amis[RAY_EXAMPLE_IMAGE].deprecation_time = ec2_refusals.DEPRECATION_TIME

    replacements: list[tuple[type, str, Any]] = [
        (AmiBackend, "create_image", create_image_with_tags),
        (AmiBackend, "_load_amis", load_public_images),
        (Ami, "block_device_mappings", property(mappings_of_begun_snapshots)),
        (ParameterDict, "__init__", with_public_images),
    ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)


def set_image_state(request: dict[str, Any]) -> dict[str, Any]:
    """Record a new state of an AMI, if it still exists."""
    for backend in list(ec2_backends[DEFAULT_ACCOUNT_ID].values()):
        if ami := backend.amis.get(request["id"]):
            ami.state = request["state"]
    return {}


def hide_snapshot(request: dict[str, Any]) -> dict[str, Any]:
    """List no snapshot of an AMI yet."""
    for backend in list(ec2_backends[DEFAULT_ACCOUNT_ID].values()):
        if ami := backend.amis.get(request["id"]):
            _unbegun[ami.id] = backend.snapshots.pop(ami.ebs_snapshot.id)
    return {}


def begin_snapshot(request: dict[str, Any]) -> dict[str, Any]:
    """List the snapshot of an AMI from now on, also if the AMI is gone: EC2 keeps it."""
    snapshot = _unbegun.pop(request["id"])
    snapshot.ec2_backend.snapshots[snapshot.id] = snapshot
    return {}
