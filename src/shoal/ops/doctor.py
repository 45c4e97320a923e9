"""Looks at a cluster file and at the account it is for, and tells everything that is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.ops import ray_versions
from shoal.ops.context import Context
from shoal.ops.site import Site
from shoal.providers.base import Examines, Finding, State
from shoal.spec import LoadedSpec

_SECONDS = 60.0


@dataclass(frozen=True)
class Diagnosis:
    """Something that was found, and where in the file it comes from."""

    finding: Finding
    place: str = ""


async def diagnose(ctx: Context, loaded: LoadedSpec) -> list[Diagnosis]:
    """All that would keep the cluster from coming up, or a node of it from joining, errors first.
    Nothing is created."""
    spec = loaded.launchable()
    site = Site.of(ctx, spec)
    provider = site.provider
    look = provider.examine if isinstance(provider, Examines) else provider.check
    told, odd = await asyncio.gather(_heard(look(spec)), _odd_rays(site))
    found = [*site.check_files(), *told, *odd]
    found.sort(key=lambda finding: finding.severity != "error")
    return [Diagnosis(finding, _place(loaded, finding)) for finding in dict.fromkeys(found)]


async def _heard(looking: Awaitable[Sequence[Finding]]) -> Sequence[Finding]:
    """What a look found. One that fails has found something, too."""
    try:
        return await asyncio.wait_for(looking, _SECONDS)
    except ShoalError as error:
        return [Finding("error", error.what, error.why, error.fix)]
    except asyncio.TimeoutError:
        why = f"no answer within {_SECONDS:.0f} s"
        return [Finding("error", "the provider does not answer", why)]


async def _odd_rays(site: Site) -> list[Finding]:
    """Nodes of a cluster that is up whose Ray is not that of their head. When nobody says which
    nodes there are, the reason is found elsewhere."""
    try:
        instances = await site.provider.find(site.spec.cluster_name)
    except ShoalError:
        return []
    there = [i for i in instances if i.state is State.RUNNING]
    head = next((i for i in there if i.role == "head"), None)
    if head is None:
        return []
    odd = await ray_versions.differing(site, head, [i for i in there if i is not head])
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


def _place(loaded: LoadedSpec, finding: Finding) -> str:
    origin = loaded.origin_of(*finding.at) if finding.at else None
    return str(origin) if origin is not None and origin.kind in ("file", "legacy") else ""
