"""What the controller knows, as the sum of its journal's entries. Pure: an entry in, the memory
changed; replaying all entries gives the same memory again."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from shoal.controller.lifecycle import Node
from shoal.core.node_phase import Phase
from shoal.scaling import LaunchFailure

_KEPT_DECISIONS = 200
_KEPT_GONE = 200
_KEPT_FAILURES = 50


@dataclass(frozen=True)
class Entry:
    """Base of all that is journaled."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class NodeUpdated(Entry):
    """A node as it is from now on."""

    kind = "node"
    node: Node


@dataclass(frozen=True)
class Intent(Entry):
    """Machines that are about to be asked for. The token makes asking again the same request."""

    kind = "intent"
    token: str
    node_type: str
    count: int
    why: str
    at: float
    throttled: bool = True
    market: str = "on-demand"
    zone: str = ""
    price_per_hour: float | None = None


@dataclass(frozen=True)
class IntentResolved(Entry):
    """An intent was answered: its machines are nodes now, or there will be none."""

    kind = "settled"
    token: str


@dataclass(frozen=True)
class Failure(Entry):
    """A machine could not be had, or not be made a node."""

    kind = "failure"
    failure: LaunchFailure
    text: str


@dataclass(frozen=True)
class Success(Entry):
    """Machines of this type were had, or set up: earlier failures to do so do not count."""

    kind = "success"
    node_type: str
    step: Literal["launch", "setup"]


@dataclass(frozen=True)
class Blocked(Entry):
    """A node type is not launched any more until the cluster is handed over again."""

    kind = "blocked"
    node_type: str
    why: str


@dataclass(frozen=True)
class ConfigApplied(Entry):
    """`up` handed the cluster over, known by its stamp: everything may be tried again."""

    kind = "handed over"
    stamp: int
    at: float


@dataclass(frozen=True)
class Decision(Entry):
    """Something that was decided, and why, for a person to read. `action` is a verb."""

    kind = "decision"
    at: float
    action: str
    subject: str
    why: str
    cause: str = ""


@dataclass
class ControllerState:
    """Nodes by id, open intents by token, ended nodes (the last ones), when the cluster was handed
    over, failures since then, refusals to try again, and the last decisions."""

    nodes: dict[str, Node] = field(default_factory=dict)
    gone: dict[str, Node] = field(default_factory=dict)
    intents: dict[str, Intent] = field(default_factory=dict)
    handed_over: ConfigApplied = ConfigApplied(0, float("-inf"))
    failures: tuple[Failure, ...] = ()
    blocked: dict[str, str] = field(default_factory=dict)
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=_KEPT_DECISIONS))

    def apply(self, entry: Entry) -> None:
        """Take an entry in."""
        if isinstance(entry, NodeUpdated):
            self._note(entry.node)
        elif isinstance(entry, Intent):
            self.intents[entry.token] = entry
        elif isinstance(entry, IntentResolved):
            self.intents.pop(entry.token, None)
        elif isinstance(entry, Failure):
            self.failures = (*self.failures, entry)[-_KEPT_FAILURES:]
        elif isinstance(entry, Success):
            self.failures = tuple(f for f in self.failures if not _is_undone(f, entry))
        elif isinstance(entry, Blocked):
            self.blocked[entry.node_type] = entry.why
        elif isinstance(entry, ConfigApplied):
            self.handed_over = entry
            self.blocked.clear()
            self.failures = ()
        elif isinstance(entry, Decision):
            self.decisions.append(entry)

    def entries(self) -> Iterator[Entry]:
        """The fewest entries that give this memory when replayed."""
        yield from (NodeUpdated(node) for node in self.gone.values())
        yield from (NodeUpdated(node) for node in self.nodes.values())
        yield from self.intents.values()
        if self.handed_over.stamp:
            yield self.handed_over
        yield from self.failures
        yield from (Blocked(node_type, why) for node_type, why in self.blocked.items())
        yield from self.decisions

    def _note(self, node: Node) -> None:
        if node.phase is not Phase.GONE:
            self.nodes[node.id] = node
            self.gone.pop(node.id, None)  # a machine of one's own may come back
            return
        self.nodes.pop(node.id, None)
        self.gone[node.id] = node
        while len(self.gone) > _KEPT_GONE:
            del self.gone[next(iter(self.gone))]


def _is_undone(entry: Failure, success: Success) -> bool:
    step = "setup" if entry.failure.kind == "setup" else "launch"
    return (entry.failure.node_type, step) == (success.node_type, success.step)


_KINDS: Mapping[str, type[Entry]] = {
    cls.kind: cls
    for cls in (
        NodeUpdated,
        Intent,
        IntentResolved,
        Failure,
        Success,
        Blocked,
        ConfigApplied,
        Decision,
    )
}


def to_line(entry: Entry) -> str:
    """The entry as a line of JSON."""
    return json.dumps({"kind": entry.kind, **vars(entry)}, default=vars)


def from_line(line: str) -> Entry:
    """The entry that `to_line` was given. Raises ValueError for what is none."""
    data: dict[str, Any] = json.loads(line)
    fields = {name: value for name, value in data.items() if name != "kind"}
    try:
        if data["kind"] == NodeUpdated.kind:
            node = dict(fields["node"])
            return NodeUpdated(Node(**{**node, "phase": Phase(node["phase"])}))
        if data["kind"] == Failure.kind:
            return Failure(LaunchFailure(**fields["failure"]), fields["text"])
        return _KINDS[data["kind"]](**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a journal entry: {error}") from None
