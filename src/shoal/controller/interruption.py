"""What a provider says about the end of a machine, and what a node is from then on. Pure."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Literal

from shoal.controller.lifecycle import Node, moved
from shoal.core.node_phase import Phase

_STAYS = frozenset({Phase.READY, Phase.DRAINING})


@dataclass(frozen=True)
class Interruption:
    """A machine will be taken away, at a time in epoch seconds (`end`), or may well be (`risk`,
    without a time)."""

    kind: Literal["end", "risk"]
    at: float | None = None


def parse(text: str) -> Interruption:
    """The notice in a line like `end 1763260000` or `risk`. Raises ValueError for other lines."""
    kind, *rest = text.split()[:2] or [""]
    if kind == "risk":
        return Interruption("risk")
    if kind == "end" and rest:
        at = float(rest[0])
        if math.isfinite(at):
            return Interruption("end", at)
    raise ValueError("a notice is `risk`, or `end` and a time in epoch seconds")


def apply_interruption(node: Node, notice: Interruption, now: float) -> Node | None:
    """The node as it is once the notice is known; None when nothing follows from it. A risk is no
    reason to give up a machine that is on its way, since the next would run the same one, nor one
    that is leaving anyway."""
    if node.role == "head" or not (node.phase in _STAYS or node.on_the_way):
        return None
    if (notice.kind, notice.at) == (node.notice, node.taken_at):
        return None
    if notice.kind == "risk" and (node.notice or node.phase is not Phase.READY):
        return None
    why = in_words(notice)
    told = replace(node, notice=notice.kind, taken_at=notice.at, ended=why)
    return told if node.on_the_way else moved(told, Phase.DRAINING, now, why)


def in_words(notice: Interruption) -> str:
    """Why the node has to go."""
    if notice.at is None:
        return "its provider may take the machine away soon, and recommends another"
    at = time.strftime("%H:%M:%S", time.gmtime(notice.at))
    return f"its provider takes the machine away at {at} UTC"
