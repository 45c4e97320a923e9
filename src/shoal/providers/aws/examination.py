"""Everything that AWS can tell beforehand of why a cluster file would not come up: asked for at
once, told at once, and without a cent spent."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from shoal.errors import AuthError, ProviderError, ShoalError
from shoal.parallel import side_by_side
from shoal.providers.aws import foundation, judgement, keypair, launch, network, tags, types
from shoal.providers.aws.calls import Aws
from shoal.providers.aws.judgement import Facts, Kind
from shoal.providers.base import Finding
from shoal.spec.model import ClusterSpec

_QUOTA_CODES = {
    ("standard", "on-demand"): "L-1216C47A",
    ("standard", "spot"): "L-34B43A08",
    ("g", "on-demand"): "L-DB2E81BA",
    ("g", "spot"): "L-3819A6DF",
    ("p", "on-demand"): "L-417A185B",
    ("p", "spot"): "L-7212CCBC",
    ("inf", "on-demand"): "L-1945791B",
    ("inf", "spot"): "L-B5D1601B",
    ("trn", "on-demand"): "L-2C3B7624",
    ("trn", "spot"): "L-6B0D517C",
    ("x", "on-demand"): "L-7295265B",
    ("x", "spot"): "L-E3A00192",
    ("f", "on-demand"): "L-74FC7D96",
    ("f", "spot"): "L-88CF9481",
}
_DRY = "DryRunOperation"
_DENIED = ("UnauthorizedOperation", "AccessDenied")


async def examine(aws: Aws, spec: ClusterSpec) -> list[Finding]:
    """All that is found. Without credentials there is nothing else to find out."""
    if wrong := judgement.of_region(aws.region, _regions()):
        return wrong
    try:
        await aws.call("sts", "get_caller_identity")
    except AuthError as error:
        return [_of_credentials(error)]
    return await _Examination(aws, spec).run()


class _Examination:
    """One look at an account with credentials, in a region that is there."""

    def __init__(self, aws: Aws, spec: ClusterSpec) -> None:
        self._aws = aws
        self._spec = spec
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        names = sorted(self._spec.node_types)
        configs = await self._asked(foundation.whole_configs(self._aws, self._spec, names), {})
        kinds = [
            Kind(name, configs[name], node_type.min_workers, name == self._spec.head_node_type)
            for name, node_type in self._spec.node_types.items()
            if name in configs
        ]
        kinds = [kind for kind in kinds if kind.is_head or kind.min_workers or kind.config]
        facts, zones, caller = await self._learn(kinds)
        has_key = keypair.private_key(self._spec.auth).is_file()
        for kind in kinds:
            self._findings += [
                *judgement.of_type(kind, facts, zones, self._aws.region),
                *judgement.of_image(kind, facts),
                *judgement.of_key_pair(kind, facts, has_private_half=has_key),
                *judgement.of_groups(kind, facts, caller),
            ]
        return list(dict.fromkeys(self._findings))

    async def _learn(self, kinds: Sequence[Kind]) -> tuple[Facts, set[str], Sequence[str]]:
        aws, spec = self._aws, self._spec
        machines = {kind.instance_type for kind in kinds}
        images = {kind.config["ImageId"] for kind in kinds if _names_image(kind)}
        groups = sorted({id for kind in kinds for id in launch.own_groups(kind.config)})
        pairs = any(kind.config.get("KeyName") for kind in kinds)

        async def subnets() -> set[str]:
            known = await network.subnets(aws)
            chosen = [foundation.subnets_for(spec, kind.config, known) for kind in kinds]
            return {subnet.zone for choice in chosen for subnet in choice}

        async def caller() -> Sequence[str]:
            inside = spec.provider.settings.get("use_internal_ips")
            return [] if inside or not groups else await network.caller_ranges()

        questions = [
            self._asked(types.describe(aws, machines), {}),
            self._asked(self._offered(machines), {}),
            self._asked(self._images(images), {}),
            self._asked(self._key_pairs(pairs), set()),
            self._asked(self._groups(groups), {}),
            self._asked(subnets(), set()),
            self._asked(caller(), []),
            self._asked(self._rehearse(), None),
        ]
        *records, zones, here, _ = await side_by_side(questions)
        facts = Facts(*records)
        self._findings += await self._quotas(kinds, facts)
        return facts, zones, here

    async def _asked(self, question: Awaitable[Any], nothing: Any) -> Any:
        """The answer, or, when AWS refuses to give it, that as something found."""
        try:
            return await question
        except ShoalError as error:
            self._findings.append(judgement.as_finding(error))
            return nothing

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

    async def _images(self, names: set[str]) -> dict[str, Any]:
        if not names:
            return {}
        wanted = [{"Name": "image-id", "Values": sorted(names)}]
        answer = await self._aws.call("ec2", "describe_images", Filters=wanted)
        return {one["ImageId"]: one for one in answer["Images"]}

    async def _key_pairs(self, wanted: bool) -> set[str]:
        if not wanted:
            return set()
        answer = await self._aws.call("ec2", "describe_key_pairs")
        return {one["KeyName"] for one in answer["KeyPairs"]}

    async def _groups(self, ids: Sequence[str]) -> dict[str, Any]:
        if not ids:
            return {}
        wanted = [{"Name": "group-id", "Values": list(ids)}]
        found = await self._aws.pages(
            "ec2", "describe_security_groups", "SecurityGroups", Filters=wanted
        )
        return {one["GroupId"]: one for one in found}

    async def _rehearse(self) -> None:
        """Have AWS say of each call whether it would be allowed."""
        cluster = self._spec.cluster_name
        key = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"
        rehearsals: dict[str, dict[str, Any]] = {
            "run_instances": {
                "ImageId": "ami-00000000000000000",
                "InstanceType": launch.DEFAULT_TYPE,
                "MinCount": 1,
                "MaxCount": 1,
                "TagSpecifications": tags.at_creation("instance", tags.ownership(cluster)),
            },
            "create_security_group": {"GroupName": "shoal-rehearsal", "Description": "rehearsal"},
            "import_key_pair": {"KeyName": "shoal-rehearsal", "PublicKeyMaterial": key},
        }
        results = await side_by_side(
            self._denied(operation, parameters) for operation, parameters in rehearsals.items()
        )
        self._findings += judgement.of_permissions([name for name in results if name])

    async def _denied(self, operation: str, parameters: dict[str, Any]) -> str:
        """The name of the call, if it is not allowed. AWS checks that before all else, so any
        other refusal is of what was made up here."""
        try:
            await self._aws.call("ec2", operation, ignoring=(_DRY,), DryRun=True, **parameters)
        except ProviderError as error:
            if any(code in error.why for code in _DENIED):
                return "".join(word.title() for word in operation.split("_"))
        except ShoalError:
            pass
        return ""

    async def _quotas(self, kinds: Sequence[Kind], facts: Facts) -> list[Finding]:
        """Who may not look at quotas learns nothing of them: that is not what a launch needs."""
        wanted = {
            (judgement.quota_family(kind.instance_type), launch.market(kind.config))
            for kind in kinds
            if kind.fewest
        }
        limits: dict[tuple[str, str], float] = {}

        async def limit(key: tuple[str, str]) -> None:
            try:
                answer = await self._aws.call(
                    "service-quotas",
                    "get_service_quota",
                    ServiceCode="ec2",
                    QuotaCode=_QUOTA_CODES[key],
                )
                limits[key] = float(answer["Quota"]["Value"])
            except (ShoalError, KeyError):
                return

        await side_by_side(limit(key) for key in wanted if key in _QUOTA_CODES)
        return judgement.of_quotas(kinds, facts, limits, await self._in_use(limits))

    async def _in_use(self, limits: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
        """How many vCPUs of each quota the account uses now."""
        if not limits:
            return {}
        alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        pages = await self._asked(
            self._aws.pages("ec2", "describe_instances", "Reservations", Filters=alive), []
        )
        used: dict[tuple[str, str], float] = {}
        for record in (one for page in pages for one in page["Instances"]):
            market = "spot" if record.get("InstanceLifecycle") == "spot" else "on-demand"
            cpu = record.get("CpuOptions") or {}
            vcpus = cpu.get("CoreCount", 0) * cpu.get("ThreadsPerCore", 1)
            key = (judgement.quota_family(record["InstanceType"]), market)
            used[key] = used.get(key, 0) + vcpus
        return used


def _names_image(kind: Kind) -> bool:
    return bool(kind.config.get("ImageId")) and kind.config["ImageId"] != "latest_dlami"


def _of_credentials(error: AuthError) -> Finding:
    """Which profiles there are helps more than that one is missing."""
    profiles = _profiles()
    listed = ", ".join(profiles) if profiles else "none"
    fix = f"AWS_PROFILE={profiles[0]} shoal up ..." if profiles else "aws configure"
    if "expired" in error.why.lower():
        fix = "aws sso login, or aws configure"
    why = f"{error.why}; profiles in ~/.aws/config: {listed}"
    return Finding("error", error.what, why, fix)


def _regions() -> set[str]:
    """As boto3 knows them: a region that does not exist cannot be asked whether it does."""
    import boto3

    session = boto3.Session()
    return {
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("ec2", partition_name=partition)
    }


def _profiles() -> list[str]:
    import boto3

    return sorted(boto3.Session().available_profiles)
