"""Looks at a cluster file and at the account it is for, and tells everything that is wrong: for
whoever asks, and as the first step of `up`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from shoal.cluster.handle import ClusterHandle
from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.events import PreflightFinding
from shoal.ops import ray_versions
from shoal.ops.context import Context
from shoal.ops.image_checks import Images
from shoal.providers.model import Finding, State
from shoal.spec import LoadedSpec
from shoal.spec.loading import SourceOf

_SECONDS = 60.0


async def diagnose(ctx: Context, loaded: LoadedSpec) -> list[PreflightFinding]:
    """All that would keep the cluster from coming up, or a node of it from joining, errors first.
    Nothing is created."""
    cluster = ClusterHandle.of(ctx, loaded.launchable())
    looks = [check(cluster), examine(cluster, ctx.clock, _SECONDS), _odd_rays(cluster)]
    found = await run_all(looks)
    return locate([finding for some in found for finding in some], loaded.source_of)


async def check(cluster: ClusterHandle) -> list[Finding]:
    """What needs no more than the file and a glance."""
    try:
        return [*cluster.check_files(), *await cluster.provider.preflight(cluster.spec)]
    except ShoalError as error:
        return [*cluster.check_files(), Finding("error", error.what, error.why, error.fix)]


async def examine(cluster: ClusterHandle, clock: Clock, seconds: float) -> list[Finding]:
    """What only the provider and the registries of images know. That they cannot be asked is no
    error of the file's."""
    images = Images(cluster.spec, cluster.provider, clock)

    async def of_provider() -> Sequence[Finding]:
        deep_preflight = cluster.capabilities.deep_preflight
        if deep_preflight is None:
            return []
        return await deep_preflight(cluster.spec, images.room)

    try:
        looks = run_all([of_provider(), images.findings()])
        found = await asyncio.wait_for(looks, seconds)
    except ConfigError as error:
        return [Finding("error", error.what, error.why, error.fix)]
    except ShoalError as error:
        return [Finding("warning", error.what, error.why, error.fix)]
    except asyncio.TimeoutError:
        why = f"no answer within {seconds:.0f} s"
        return [Finding("warning", "not everything could be looked at beforehand", why)]
    return [finding for some in found for finding in some]


async def _odd_rays(cluster: ClusterHandle) -> list[Finding]:
    """Nodes of a cluster that is up whose Ray is not that of their head. When nobody says which
    nodes there are, the reason is found elsewhere."""
    try:
        instances = await cluster.instances()
    except ShoalError:
        return []
    there = [i for i in instances if i.state is State.RUNNING]
    head = next((i for i in there if i.role == "head"), None)
    if head is None:
        return []
    odd = await ray_versions.differing(cluster, head, [i for i in there if i is not head])
    names = {i.id: i.name for i in there}
    return [
        Finding(
            "error",
            f"{names[id]} cannot join",
            why=f"{what}; the nodes of a cluster need the same",
            fix="name one version in setup_commands (pip install 'ray[default]==2.60.0') and run "
            "shoal up; with shoal shell, cluster.update_ray()",
        )
        for id, what in odd.items()
    ]


def locate(findings: Sequence[Finding], source_of: SourceOf) -> list[PreflightFinding]:
    """The findings with their places, each once, errors first. What is an error for one kind of
    node and a warning for another is an error."""
    once: dict[Finding, PreflightFinding] = {}
    for finding in sorted(findings, key=lambda finding: finding.severity != "error"):
        place = source_of(finding.at)
        found = PreflightFinding(finding.severity, finding.what, finding.why, finding.fix, place)
        once.setdefault(replace(finding, severity="error"), found)
    return list(once.values())
