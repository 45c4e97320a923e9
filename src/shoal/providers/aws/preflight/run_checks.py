"""Everything that AWS can tell beforehand of why a cluster file would not come up: asked for at
once, told at once, and without a cent spent."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import AuthError, ConfigError, DeniedError, ShoalError, TransientError
from shoal.providers.aws import amis, key_pairs, launch_config, launch_request, network
from shoal.providers.aws.client import AwsClient, regions
from shoal.providers.aws.preflight import access, checks, dry_run, quotas
from shoal.providers.aws.preflight.checks import Facts, NodeTypeCheck
from shoal.providers.model import Finding, ImageSizeLookup
from shoal.spec.cluster_spec import ClusterSpec


async def run_checks(aws: AwsClient, spec: ClusterSpec, room: ImageSizeLookup) -> list[Finding]:
    """All that is found. Without credentials, or in a region that is not there, there is nothing
    else to find out."""
    if aws.region not in regions():
        return []
    examination = _Examination(aws, spec, room)
    try:
        caller, _ = await run_all([_caller(aws), examination.run()])
    except AuthError as error:
        return [Finding("error", error.what, error.why, error.fix)]
    return [*examination.findings, *access.of_permissions(examination.denied, caller or "")]


async def _caller(aws: AwsClient) -> str:
    """Who we are to AWS, if it tells. Raises what is wrong with the credentials: with them, all
    other answers would say the same."""
    try:
        return str((await aws.call("sts", "get_caller_identity"))["Arn"])
    except DeniedError:
        return ""


class _Examination:
    """One look at an account: `findings`, and the calls that a dry run was `denied`."""

    def __init__(self, aws: AwsClient, spec: ClusterSpec, room: ImageSizeLookup) -> None:
        self._aws = aws
        self._spec = spec
        self._room = room
        self.findings: list[Finding] = []
        self.denied: Sequence[str] = ()

    async def run(self) -> None:
        configs = await self._asked(self._configs())
        kinds = [
            self._kind(name, configs[name])
            for name, kind in self._spec.node_types.items()
            if configs is not None and (kind.node_config or name == self._spec.head_node_type)
        ]
        questions = self._questions(kinds, configs or {})
        *answers, refused = await run_all(map(self._asked, questions))
        machines, offered, found, rooms, subnets, caller, pairs, groups, limits, used = answers
        if refused is not None:
            self.denied = refused.denied
            self.findings += refused.others
        keys = await self._keys() if pairs else ()
        known, defaults = found or ({}, None)
        facts = Facts(machines or {}, offered or {}, known, defaults)
        for kind in kinds:
            told: list[Finding] = []
            zones: set[str] = set()
            from_here = caller or ()
            if subnets is not None and not access.is_met_directly(kind, self._spec, subnets):
                from_here = ()
            if subnets is not None:
                zones, told = checks.of_subnets(kind, self._spec, subnets)

            def of_machine(choice: NodeTypeCheck, zones: set[str] = zones) -> list[Finding]:
                wrong: list[Finding] = []
                if machines is not None and offered is not None:
                    wrong += checks.of_type(choice, facts, zones, self._aws.region)
                return wrong + (checks.of_image(choice, facts) if found is not None else [])

            told += checks.of_choices(kind, of_machine)
            if found is not None:
                told += checks.of_root_volume(kind, facts)
                told += checks.of_container_room(kind, facts, (rooms or {}).get(kind.name, {}))
            if pairs is not None:
                certain = not self._ssh_finds_key(kind)
                own = keys if certain else _keys_of_ssh()
                told += access.of_key_pair(kind, pairs, own, certain=certain)
            if groups is not None:
                told += access.of_groups(kind, groups, from_here)
            if not launch_request.own_groups(kind.config):
                told += access.of_rules(self._spec, from_here)
            # What nobody has asked for yet keeps nothing from coming up.
            self.findings += told if kind.fewest else [replace(f, severity="warning") for f in told]
        if limits and used is not None:
            self.findings += quotas.judge(kinds, facts.types, limits, used)

    def _questions(
        self, kinds: Sequence[NodeTypeCheck], configs: Mapping[str, Mapping[str, Any]]
    ) -> list[Awaitable[Any]]:
        aws, spec = self._aws, self._spec
        return [
            launch_config.machines(aws, spec, configs),
            self._offered({choice.instance_type for kind in kinds for choice in kind.choices}),
            self._images(kinds),
            self._rooms(kinds, configs),
            network.subnets(aws),
            self._reached_from(),
            self._key_pairs(kinds),
            self._groups(
                sorted({id for kind in kinds for id in launch_request.own_groups(kind.config)})
            ),
            quotas.limits(aws, [kind for kind in kinds if kind.fewest]),
            quotas.in_use(aws, spec.cluster_name),
            dry_run.dry_run(aws, spec, [kind.name for kind in kinds if kind.fewest]),
        ]

    async def _asked(self, question: Awaitable[Any]) -> Any:
        """The answer, or None. That something may not be looked at, or not now, says nothing of
        whether it would work."""
        try:
            return await question
        except ShoalError as error:
            unseen = isinstance(error, (AuthError, TransientError))
            finding = Finding("warning" if unseen else "error", error.what, error.why, error.fix)
            self.findings.append(finding)
            return None

    async def _configs(self) -> dict[str, dict[str, Any]]:
        return await launch_config.merged_node_configs(
            self._aws, self._spec, sorted(self._spec.node_types)
        )

    def _kind(self, name: str, config: Mapping[str, Any]) -> NodeTypeCheck:
        shoal = self._spec.shoal
        own = launch_request.instance_type(config)
        return NodeTypeCheck(
            name,
            config,
            self._spec.node_types[name].min_workers,
            is_head=name == self._spec.head_node_type,
            housed=self._housed(name),
            fallback=tuple(kind for kind in shoal.fallback.get(name, ()) if kind != own),
            on_demand_too=shoal.on_demand_fallback,
        )

    def _housed(self, name: str) -> dict[str, tuple[str, ...]]:
        """The images of the containers that nodes of a type live in."""
        found: dict[str, tuple[str, ...]] = {}
        if worker := self._spec.node_types[name].setup.container:
            found[worker.image] = ("node_types", name, "setup", "container", "image")
        if name == self._spec.head_node_type and self._spec.head_setup.container:
            found[self._spec.head_setup.container.image] = ("head_setup", "container", "image")
        return found

    async def _offered(self, machines: set[str]) -> dict[str, set[str]]:
        found = await self._aws.pages(
            "ec2",
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": sorted(machines)}],
        )
        zones: dict[str, set[str]] = {}
        for one in found:
            zones.setdefault(one["InstanceType"], set()).add(one["Location"])
        return zones

    async def _images(self, kinds: Sequence[NodeTypeCheck]) -> tuple[dict[str, Any], amis.Defaults]:
        """The images that machines start from, by id, and which ones they start from by default.
        Those matter only where something has to fit on them."""
        named = [kind.config.get("ImageId") for kind in kinds]
        defaults = await amis.Defaults.look_up(self._aws)
        wanted = {str(image) for image in named if amis.is_named(image)}
        if any(kind.housed or kind.config.get("BlockDeviceMappings") for kind in kinds):
            wanted |= defaults.ids
        if not wanted:
            return {}, defaults
        filters = [{"Name": "image-id", "Values": sorted(wanted)}]
        answer = await self._aws.call("ec2", "describe_images", Filters=filters)
        return {one["ImageId"]: one for one in answer["Images"]}, defaults

    async def _rooms(
        self, kinds: Sequence[NodeTypeCheck], configs: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, int | None]]:
        """How much room the images of each kind's containers take, for its processor."""
        housed = [(kind, image) for kind in kinds for image in kind.housed]
        if not housed:
            return {}
        machines = await launch_config.machines(self._aws, self._spec, configs)
        pairs = [(k, i) for k, i in housed if k.instance_type in machines]
        sizes = await run_all(
            self._room(image, machines[kind.instance_type].architecture) for kind, image in pairs
        )
        found: dict[str, dict[str, int | None]] = {}
        for (kind, image), size in zip(pairs, sizes, strict=True):
            found.setdefault(kind.name, {})[image] = size
        return found

    async def _reached_from(self) -> Sequence[str]:
        """From where we would log in; nothing where that does not matter or cannot be known."""
        if self._spec.provider.settings.get("use_internal_ips"):
            return ()
        try:
            here = await network.caller_ranges(self._aws)
        except ConfigError:
            if self._spec.shoal.ssh_from:
                return ()
            raise
        return () if self._spec.auth.ssh_proxy_command else here

    async def _key_pairs(self, kinds: Sequence[NodeTypeCheck]) -> dict[str, str]:
        if not any(kind.config.get("KeyName") for kind in kinds):
            return {}
        answer = await self._aws.call("ec2", "describe_key_pairs", IncludePublicKey=True)
        return {one["KeyName"]: one.get("PublicKey", "") for one in answer["KeyPairs"]}

    def _ssh_finds_key(self, kind: NodeTypeCheck) -> bool:
        """Whether it is left to ssh which key to log in with, as `doors` does."""
        named = "KeyName" in self._spec.node_types[kind.name].node_config
        return named and self._spec.auth.ssh_private_key is None

    async def _keys(self) -> Sequence[str]:
        """The public half of the key we log in with; none if there is none, an empty one if it
        cannot be read."""
        if not key_pairs.private_key(self._spec.auth).is_file():
            return ()
        try:
            return (await key_pairs.public_half(self._spec.auth),)
        except ConfigError:
            return ("",)

    async def _groups(self, ids: Sequence[str]) -> dict[str, Any]:
        if not ids:
            return {}
        wanted = [{"Name": "group-id", "Values": list(ids)}]
        found = await self._aws.pages(
            "ec2", "describe_security_groups", "SecurityGroups", Filters=wanted
        )
        return {one["GroupId"]: one for one in found}


def _keys_of_ssh() -> list[str]:
    """The public halves of the keys that a person keeps where ssh looks for them."""
    found = []
    for file in Path("~/.ssh").expanduser().glob("*.pub"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found.append(file.read_text())
    return found
