"""How large the cluster should be: pure functions from demand, nodes, spec and time to a Plan.

No I/O, no Ray, no cloud and no clock in this room.
"""

from shoal.scaling.decision import Cancel, Cause, Drain, Launch, Plan, Reason, Unmet
from shoal.scaling.demand import Demand, Gang, LabelRule, Request, Shape, Strategy
from shoal.scaling.planner import plan
from shoal.scaling.state import History, LaunchFailure, NodeView, Offer

__all__ = [
    "Cancel",
    "Cause",
    "Demand",
    "Drain",
    "Gang",
    "History",
    "LabelRule",
    "Launch",
    "LaunchFailure",
    "NodeView",
    "Offer",
    "Plan",
    "Reason",
    "Request",
    "Shape",
    "Strategy",
    "Unmet",
    "plan",
]
