"""Deciding the cluster's size: pure functions from demand, nodes, spec and time to a Plan.

No I/O, no Ray, no cloud calls and no clock in this package. `planner` explains a planning pass.
"""

from typing import TYPE_CHECKING, Any

from shoal.scaling.demand import Demand, Gang, LabelRule, Request, Shape, Strategy
from shoal.scaling.inputs import History, LaunchFailure, NodeView, Offering
from shoal.scaling.scaling_plan import (
    Cause,
    Plan,
    PlannedCancel,
    PlannedDrain,
    PlannedLaunch,
    Reason,
    Unmet,
)

if TYPE_CHECKING:
    from shoal.scaling.planner import plan

__all__ = [
    "Cause",
    "Demand",
    "Gang",
    "History",
    "LabelRule",
    "LaunchFailure",
    "NodeView",
    "Offering",
    "Plan",
    "PlannedCancel",
    "PlannedDrain",
    "PlannedLaunch",
    "Reason",
    "Request",
    "Shape",
    "Strategy",
    "Unmet",
    "plan",
]


def __getattr__(name: str) -> Any:
    # The planner is most of this package. Importing it only when used keeps commands that need
    # just the types fast to start.
    if name == "plan":
        from shoal.scaling.planner import plan

        return plan
    raise AttributeError(f"module 'shoal.scaling' has no attribute {name!r}")
