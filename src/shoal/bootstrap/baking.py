"""Has an image made of a node on which setup is complete, and recognizes nodes that were launched
from one."""

from __future__ import annotations

import asyncio

from shoal.bootstrap import applied_state
from shoal.bootstrap.applied_state import AppliedState
from shoal.bootstrap.node_plan import NodePlan
from shoal.bootstrap.steps import NodeReporter
from shoal.core.errors import SetupError, ShoalError
from shoal.core.node_phase import Phase

_SECONDS = 120.0
_WARNING = "could not create an image of it"


def is_baked(plan: NodePlan, state: AppliedState) -> bool:
    """Whether a node in this state was launched from an image on which its setup is complete.
    Files that it gets since do not matter: its setup hash covers those that the commands name."""
    return bool(plan.setup_hash) and state.setup == _baked(plan.setup_hash)


async def bake(plan: NodePlan, state: AppliedState, reporter: NodeReporter) -> None:
    """Have an image made of this node, which later ones are launched from. The cluster does not
    depend on it, so a failure is only a warning."""
    if plan.bake is None:
        return
    baked = AppliedState(setup=_baked(plan.setup_hash), container=state.container)
    reporter.phase(Phase.PREPARING, "creating an image")
    try:
        await asyncio.wait_for(plan.bake(applied_state.to_text(baked)), _SECONDS)
    except ShoalError as error:
        reporter.warn(_WARNING, error)
    except (TimeoutError, asyncio.TimeoutError):
        reporter.warn(_WARNING, SetupError("no answer in time", why=f"it took {_SECONDS:.0f} s"))


def _baked(setup_hash: str) -> str:
    """Takes the place of the setup digest."""
    return f"baked {setup_hash}"
