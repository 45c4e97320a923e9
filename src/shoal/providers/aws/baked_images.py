"""AMIs of nodes that were set up, so that later nodes skip setup.

An AMI and its snapshots are tagged by the call that creates them, and found by these tags alone.
The name of an AMI contains its key, and EC2 accepts a name once, so two nodes cannot both become
the same AMI. EC2 completes an AMI by itself, so nothing here waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.core.errors import NotFoundError, SetupError, ShoalError, TransientError
from shoal.core.logs import suppress_and_log
from shoal.core.polling import PollUntilDeadline
from shoal.providers.aws import amis, ebs, launch_config, tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.image_store import GONE, ImageStore, snapshot_ids, state_of
from shoal.providers.aws.instances import describe_records
from shoal.providers.aws.launch_config import LaunchConfig
from shoal.providers.baked_images import BakedImage, NodeImage, SetupHashes, StaleImage
from shoal.providers.model import Instance, LaunchRequest
from shoal.providers.vm.first_ssh_contact import FirstContactRunner
from shoal.remote.runner import Runner
from shoal.remote.scripts import script_command
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import short_hash

_log = logging.getLogger(__name__)

_SCRIPTS = "shoal.providers.aws.scripts"
_SECRETS_ON_DISK = 78
_SECONDS = 60.0
_SNAPSHOT_SECONDS = 60.0
_PAUSE_SECONDS = 0.5
_NAME_IN_USE = "InvalidAMIName.Duplicate"
_MAX_NAME_TYPE = 40


def image_key(base: str, setup_hash: str) -> str:
    """Identifies what is on an AMI: what setup does, and the AMI that it was done on."""
    return short_hash([base, setup_hash])[:20]


@dataclass(frozen=True)
class BakedImages:
    """The baked AMIs of one account in one region. `runner` connects to an instance. `_begun` are
    the setup hashes of which one node was chosen: of many that are set up at once, the others make
    no calls."""

    aws: AwsClient
    runner: Callable[[Instance], FirstContactRunner]
    _begun: set[str] = field(default_factory=set)

    @property
    def store(self) -> ImageStore:
        return ImageStore(self.aws)

    async def bake(
        self, spec: ClusterSpec, instance: Instance, setup_hash: str, state: str
    ) -> str | None:
        if setup_hash in self._begun:
            return None
        self._begun.add(setup_hash)
        try:
            return await self._bake(spec, instance, setup_hash, state)
        except BaseException:
            self._begun.discard(setup_hash)
            raise

    async def _bake(
        self, spec: ClusterSpec, instance: Instance, setup_hash: str, state: str
    ) -> str | None:
        records = await describe_records(self.aws, [instance.id])
        if not records:
            raise NotFoundError(f"there is no instance {instance.id}")
        (record,) = records
        base = str(record["ImageId"])
        key = image_key(base, setup_hash)
        existing = await self.store.describe(tags.cluster_filter(spec.cluster_name))
        if any(base == image["ImageId"] for image in existing):
            return None  # it was launched from a baked AMI itself
        for image in existing:
            if tags.as_dict(image.get("Tags")).get(tags.IMAGE_KEY) != key:
                continue
            if state_of(image) != "failed":
                if not snapshot_ids(image):
                    # A command that was killed may have begun to make it of this instance.
                    await self._wait_for_snapshots(spec, str(image["ImageId"]))
                return None
            await self.store.delete_records([image])
        runner = self.runner(instance)
        await self._prepare(runner, spec, instance, key, state, record.get("KeyName"))
        try:
            id = await self._create(spec, instance, record, key, setup_hash)
            if id is not None:
                await self._wait_for_snapshots(spec, id)
        finally:
            with suppress_and_log(_log, f"clean up {instance.name}", ShoalError, TimeoutError):
                await runner.run(_script("done"), timeout=_SECONDS, skip_profile=True)
        if id is not None:
            # The AMI has the one that was in use until now.
            await runner.replace_host_key()
        return id

    async def _prepare(
        self,
        runner: Runner,
        spec: ClusterSpec,
        instance: Instance,
        key: str,
        state: str,
        key_pair: str | None,
    ) -> None:
        public_keys = await self._public_keys(key_pair)
        command = _script("prepare", spec.auth.ssh_user, key, state, *public_keys)
        done = await runner.run(command, timeout=_SECONDS, skip_profile=True)
        if done.code == _SECRETS_ON_DISK:
            raise SetupError(
                "the cluster's secrets are on its disk",
                why="it was set up before, or has no memory file system at /dev/shm",
                fix="the next new node of its type is tried again",
            )
        if not done.ok:
            raise SetupError(
                "could not prepare its disk", why="sudo is needed for it", output=done.tail
            )

    async def _public_keys(self, key_pair: str | None) -> list[str]:
        """The public key that cloud-init authorizes on the instances of a key pair."""
        if not key_pair:
            return []
        response = await self.aws.call(
            "ec2",
            "describe_key_pairs",
            ignore_codes=("InvalidKeyPair.NotFound",),
            KeyNames=[key_pair],
            IncludePublicKey=True,
        )
        keys = [str(pair.get("PublicKey", "")) for pair in response.get("KeyPairs", ())]
        return [key.split()[1] for key in keys if len(key.split()) > 1]

    async def _create(
        self,
        spec: ClusterSpec,
        instance: Instance,
        record: Mapping[str, Any],
        key: str,
        setup_hash: str,
    ) -> str | None:
        cluster = spec.cluster_name
        image_tags = {
            **tags.cluster_tags(cluster, spec.shoal.tags),
            "Name": f"shoal {cluster} {instance.node_type}",
            tags.IMAGE_KEY: key,
            tags.SETUP_HASH: setup_hash,
            tags.BASE_IMAGE: str(record["ImageId"]),
            tags.RAY_USER_NODE_TYPE: instance.node_type,
        }
        others = [
            str(mapping["DeviceName"])
            for mapping in record.get("BlockDeviceMappings") or ()
            if mapping["DeviceName"] != record.get("RootDeviceName")
        ]
        # Data is not part of it.
        excluded: dict[str, Any] = {
            "BlockDeviceMappings": [{"DeviceName": name, "NoDevice": ""} for name in others]
        }
        response = await self.aws.call(
            "ec2",
            "create_image",
            ignore_codes=(_NAME_IN_USE,),
            InstanceId=instance.id,
            Name=f"{tags.resource_name(cluster, instance.node_type[:_MAX_NAME_TYPE])}-{key}",
            Description=f"{instance.node_type} of the Ray cluster {cluster} after setup",
            NoReboot=True,
            TagSpecifications=[
                *tags.tag_specifications("image", image_tags),
                *tags.tag_specifications("snapshot", image_tags),
            ],
            **(excluded if others else {}),
        )
        if not response:
            _log.info("%s: another node already becomes this AMI", instance.name)
            return None
        _log.info("%s becomes AMI %s", instance.name, response["ImageId"])
        return str(response["ImageId"])

    async def _wait_for_snapshots(self, spec: ClusterSpec, id: str) -> None:
        """Return when the snapshots have begun: what is written from then on is not in them.
        Without this certainty the AMI is deleted, since secrets are written next."""
        try:
            if await self._have_snapshots_begun(id):
                return
            raise TransientError(
                f"AWS did not begin the snapshots of {id}",
                why=f"there were none after {_SNAPSHOT_SECONDS:.0f} s, and secrets must not be in "
                "them",
            )
        except BaseException as error:
            await self._abandon(spec, id, error)
            raise

    async def _have_snapshots_begun(self, id: str) -> bool:
        async for _ in PollUntilDeadline(self.aws.clock, _SNAPSHOT_SECONDS, _PAUSE_SECONDS):
            response = await self.aws.call(
                "ec2", "describe_images", ignore_codes=GONE, ImageIds=[id]
            )
            if any(snapshot_ids(image) for image in response.get("Images", ())):
                return True
        return False

    async def _abandon(self, spec: ClusterSpec, id: str, cause: BaseException) -> None:
        _log.warning("deleting %s: %s", id, cause)
        try:
            await self.store.deregister(id)
            await self.store.delete_leftover_snapshots(spec.cluster_name)
        except ShoalError as error:
            deregister = f"aws ec2 deregister-image --region {self.aws.region} --image-id {id}"
            raise TransientError(
                f"could not delete the incomplete image {id}",
                why=f"{error.what}: {error.why}; the secrets of the cluster may become part of it",
                fix=f"{deregister}\nshoal gc",
            ) from cause

    async def list_images(self, cluster: str) -> list[BakedImage]:
        return await self.store.list_images(cluster)

    async def delete(self, cluster: str, images: Sequence[BakedImage]) -> list[str]:
        return await self.store.delete(cluster, images)

    async def node_images(self, spec: ClusterSpec, hashes: SetupHashes) -> list[NodeImage]:
        node_types = sorted({node_type for node_type, _ in hashes})
        configs = await launch_config.resolve_launch_configs(self.aws, spec, node_types)
        by_key = {image_key(i.base, i.setup_hash): i for i in await self._usable(spec)}
        result = []
        for (node_type, role), setup_hash in hashes.items():
            base = configs[node_type].images[configs[node_type].instance_types[0]]
            baked = by_key.get(image_key(base, setup_hash)) if setup_hash else None
            result.append(NodeImage(node_type, role, base, baked))
        return result

    async def _usable(self, spec: ClusterSpec) -> list[BakedImage]:
        return [i for i in await self.store.list_images(spec.cluster_name) if i.state != "failed"]

    async def find_stale(self, spec: ClusterSpec, hashes: SetupHashes) -> list[StaleImage]:
        images = await self.store.list_images(spec.cluster_name)
        if not images:
            return []
        wanted = {
            (node_type, setup_hash) for (node_type, _), setup_hash in hashes.items() if setup_hash
        }
        current = await self._base_images(spec)
        existing = await amis.describe(self.aws, {image.base for image in images})
        stale = []
        for image in images:
            why = ""
            if image.state == "failed":
                why = "AWS could not complete it"
            elif (image.node_type, image.setup_hash) not in wanted:
                why = "the file has other commands, or no longer bakes this node type"
            elif image.base not in existing:
                why = f"the image that it was made from, {image.base}, no longer exists"
            elif image.base not in current.get(image.node_type, {image.base}):
                why = f"the node type now starts from another image than {image.base}"
            if why:
                stale.append(StaleImage(image, why))
        return stale

    async def _base_images(self, spec: ClusterSpec) -> dict[str, set[str]]:
        """The AMIs by node type, as far as they can be found: preflight reports the others."""
        configs: dict[str, LaunchConfig] = {}
        with suppress_and_log(_log, "find the AMIs", ShoalError):
            names = sorted(spec.node_types)
            configs = await launch_config.resolve_launch_configs(self.aws, spec, names)
        return {name: set(config.images.values()) for name, config in configs.items()}

    async def launch_configs(
        self,
        spec: ClusterSpec,
        configs: Mapping[str, LaunchConfig],
        requests: Sequence[LaunchRequest],
    ) -> dict[str, LaunchConfig]:
        """The configurations to launch these requests with, by their tokens: with baked AMIs where
        there are complete ones. Without an answer from EC2 there are none."""
        found: list[dict[str, Any]] = []
        if any(request.setup_hash for request in requests):
            with suppress_and_log(_log, "look for baked AMIs", ShoalError):
                found = await self.store.describe(tags.cluster_filter(spec.cluster_name))
        complete = {
            tags.as_dict(image["Tags"]).get(tags.IMAGE_KEY, ""): image
            for image in found
            if state_of(image) == "available"
        }
        return {
            request.token: with_baked(configs[request.node_type], request.setup_hash, complete)
            for request in requests
        }


def with_baked(
    config: LaunchConfig, setup_hash: str, complete: Mapping[str, Mapping[str, Any]]
) -> LaunchConfig:
    """A configuration with baked AMIs instead of those that they were made from. `complete` are the
    records of baked AMIs by key. One that does not fit on the root volume of the file is not
    used."""
    if not setup_hash:
        return config
    baked: dict[str, Mapping[str, Any]] = {}
    for base in set(config.images.values()):
        image = complete.get(image_key(base, setup_hash))
        if image is not None and ebs.fits(image, config.config.get("BlockDeviceMappings") or ()):
            baked[base] = image
    volumes = {
        str(image["ImageId"]): ebs.at_least(volume, ebs.snapshot_gib(image))
        for base, image in baked.items()
        if (volume := config.root_volumes.get(base)) is not None
    }
    return replace(
        config,
        baked={base: str(image["ImageId"]) for base, image in baked.items()},
        image_keys={
            str(image["ImageId"]): image_key(base, setup_hash) for base, image in baked.items()
        },
        root_volumes={**config.root_volumes, **volumes},
    )


def _script(*arguments: str) -> str:
    script = script_command(_SCRIPTS, "prepare_image.sh", *arguments)
    return f'"$(command -v sudo || echo env)" {script}'
