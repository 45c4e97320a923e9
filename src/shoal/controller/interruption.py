"""Interruption notices: how they are parsed, and how one changes a node. Pure."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Literal

from shoal.controller.lifecycle import Node, with_phase
from shoal.core.node_phase import Phase

_IN_RAY = frozenset({Phase.READY, Phase.DRAINING})


@dataclass(frozen=True)
class Interruption:
    """The provider will terminate an instance at a time in epoch seconds ("termination"), or says
    that it may ("rebalance", without a time); or a user wants the node to leave ("drain")."""

    kind: Literal["termination", "rebalance", "drain"]
    at: float | None = None


def parse(text: str) -> Interruption:
    """The notice in a line such as `termination 1763260000` or `rebalance`. Raises ValueError for
    any other line."""
    kind, *rest = text.split()[:2] or [""]
    if kind == "rebalance":
        return Interruption("rebalance")
    if kind == "termination" and rest:
        at = float(rest[0])
        if math.isfinite(at):
            return Interruption("termination", at)
    raise ValueError("expected `rebalance`, or `termination` and a time in epoch seconds")


def apply_interruption(node: Node, notice: Interruption, now: float) -> Node | None:
    """The node after the notice; None when the notice changes nothing. A rebalance recommendation
    changes only a ready node: a replacement of a pending one would run the same risk, and a
    draining one is leaving already."""
    if node.role == "head" or not (node.phase in _IN_RAY or node.is_pending):
        return None
    if (notice.kind, notice.at) == (node.interruption, node.terminates_at):
        return None
    if notice.at is None and (node.interruption or node.phase is not Phase.READY):
        return None
    why = describe(notice)
    interrupted = replace(node, interruption=notice.kind, terminates_at=notice.at, ended=why)
    return interrupted if node.is_pending else with_phase(interrupted, Phase.DRAINING, now, why)


def describe(notice: Interruption) -> str:
    """Why the node has to leave."""
    if notice.kind == "drain":
        return "a user requested that the node is drained"
    if notice.at is None:
        return "the provider recommends replacing the instance: it may terminate it soon"
    at = time.strftime("%H:%M:%S", time.gmtime(notice.at))
    return f"the provider terminates the instance at {at} UTC"
