"""Preflight checks of a cluster file and the account it is for: `shoal doctor`, and the first step
of `up`. Nothing is created, and every problem is reported at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from shoal.cluster.handle import ClusterHandle
from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.events import PreflightFinding
from shoal.ops import images
from shoal.ops.context import Context
from shoal.ops.image_checks import ImageChecks
from shoal.providers.model import Finding, Instance, State, head_of
from shoal.spec import LoadedSpec
from shoal.spec.loading import SourceOf

_log = logging.getLogger(__name__)

_SECONDS = 60.0


async def diagnose(ctx: Context, loaded: LoadedSpec) -> list[PreflightFinding]:
    """Everything that would keep the cluster from coming up, or a node from joining it, errors
    first."""
    cluster = ClusterHandle.of(ctx, loaded.launchable())
    findings = await run_all(
        [
            check_spec(cluster),
            check_account(cluster, ctx.clock, _SECONDS),
            _check_ray_versions(cluster),
            images.find_stale(cluster),
        ]
    )
    return locate([f for group in findings for f in group], loaded.source_of)


async def check_spec(cluster: ClusterHandle) -> list[Finding]:
    """The quick checks: those that need the file and at most one request."""
    try:
        return [*cluster.check_files(), *await cluster.provider.preflight(cluster.spec)]
    except ShoalError as error:
        return [*cluster.check_files(), Finding("error", error.what, error.why, error.fix)]


async def check_account(cluster: ClusterHandle, clock: Clock, seconds: float) -> list[Finding]:
    """The checks that query the provider and the image registries. A query that fails or times
    out is a warning, since the file may still be right."""
    container_images = ImageChecks(cluster.spec, cluster.provider, clock)

    async def check_provider() -> Sequence[Finding]:
        deep_preflight = cluster.capabilities.deep_preflight
        if deep_preflight is None:
            return []
        return await deep_preflight(cluster.spec, container_images.unpacked_size)

    try:
        checks = run_all([check_provider(), container_images.findings()])
        findings = await asyncio.wait_for(checks, seconds)
    except ConfigError as error:
        return [Finding("error", error.what, error.why, error.fix)]
    except ShoalError as error:
        _log.info("preflight checks failed: %s", error)
        return [Finding("warning", error.what, error.why, error.fix)]
    except asyncio.TimeoutError:
        why = f"no answer within {seconds:.0f} s"
        return [Finding("warning", "could not complete all preflight checks", why)]
    return [finding for group in findings for finding in group]


async def ray_version_mismatches(
    cluster: ClusterHandle, head: Instance, workers: Sequence[Instance]
) -> dict[str, str]:
    """The workers, by id, whose Ray version differs from the head's, with both versions. A worker
    whose version could not be read is left out."""
    if not workers:
        return {}
    versions = await run_all(cluster.ray_version(i, head) for i in (head, *workers))
    head_version, *worker_versions = versions
    return {
        worker.id: f"it has Ray {version}, the head has {head_version}"
        for worker, version in zip(workers, worker_versions, strict=True)
        if head_version and version and version != head_version
    }


async def _check_ray_versions(cluster: ClusterHandle) -> list[Finding]:
    """Nodes of a running cluster whose Ray version differs from the head's."""
    try:
        instances = await cluster.instances()
    except ShoalError as error:
        _log.debug("could not list instances: %s", error)  # another check reports the cause
        return []
    running = [i for i in instances if i.state is State.RUNNING]
    head = head_of(running)
    if head is None:
        return []
    workers = [i for i in running if i is not head]
    mismatches = await ray_version_mismatches(cluster, head, workers)
    names = {i.id: i.name for i in running}
    return [
        Finding(
            "error",
            f"{names[id]} cannot join",
            why=f"{mismatch}; all nodes need the same version",
            fix="pin one version in setup_commands: pip install 'ray[default]==2.60.0'\n"
            "shoal up CLUSTER\nor, in shoal shell: cluster.update_ray()",
        )
        for id, mismatch in mismatches.items()
    ]


def locate(findings: Sequence[Finding], source_of: SourceOf) -> list[PreflightFinding]:
    """The findings with their lines in the file, without duplicates, errors first. What is an
    error for one node type and a warning for another is an error."""
    located: dict[Finding, PreflightFinding] = {}
    for finding in sorted(findings, key=lambda finding: finding.severity != "error"):
        place = source_of(finding.at)
        event = PreflightFinding(
            finding.severity, finding.what, finding.why, finding.fix, place, finding.check
        )
        located.setdefault(replace(finding, severity="error"), event)
    return list(located.values())
