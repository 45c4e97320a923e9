"""Looks at a cluster file and at the account it is for, and tells everything that is wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.ops.context import Context
from shoal.ops.site import Site
from shoal.providers.base import Examines, Finding
from shoal.spec import LoadedSpec

_SECONDS = 60.0


@dataclass(frozen=True)
class Diagnosis:
    """Something that was found, and where in the file it comes from."""

    finding: Finding
    place: str = ""


async def diagnose(ctx: Context, loaded: LoadedSpec) -> list[Diagnosis]:
    """All that would keep the cluster from coming up, errors first. Nothing is created."""
    spec = loaded.launchable()
    site = Site.of(ctx, spec)
    found: list[Finding] = list(site.check_files())
    provider = site.provider
    look = provider.examine if isinstance(provider, Examines) else provider.check
    try:
        found += await asyncio.wait_for(look(spec), _SECONDS)
    except ShoalError as error:  # a check that fails has found something, too
        found.append(Finding("error", error.what, error.why, error.fix))
    except asyncio.TimeoutError:
        why = f"no answer within {_SECONDS:.0f} s"
        found.append(Finding("error", "the provider does not answer", why))
    found.sort(key=lambda finding: finding.severity != "error")
    return [Diagnosis(finding, _place(loaded, finding)) for finding in dict.fromkeys(found)]


def _place(loaded: LoadedSpec, finding: Finding) -> str:
    origin = loaded.origin_of(*finding.at) if finding.at else None
    return str(origin) if origin is not None and origin.kind in ("file", "legacy") else ""
