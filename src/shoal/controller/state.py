"""What the controller knows, as the sum of its journal entries. Pure: replaying the entries gives
the same state."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from shoal.controller.lifecycle import Node
from shoal.core.node_phase import Phase
from shoal.scaling import LaunchFailure

_MAX_DECISIONS = 200
_MAX_GONE = 200
_MAX_FAILURES = 50


# "unmet": demand for which no node can be launched; "anomaly": observations that contradict each
# other; "keep": a drain or autostop that was cancelled; "block": a node type that is not launched
# again before the next `shoal up`; "warning": something that the cluster does not depend on failed.
Action = Literal[
    "launch",
    "drain",
    "drained",
    "cancel",
    "keep",
    "retry",
    "failed",
    "block",
    "unmet",
    "anomaly",
    "interruption",
    "reconfigure",
    "restart",
    "stop",
    "warning",
]


@dataclass(frozen=True)
class Entry:
    """Base of all journal entries. `kind` identifies the type on disk."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class NodeUpdated(Entry):
    """A node as it is from now on."""

    kind = "node"
    node: Node


@dataclass(frozen=True)
class LaunchIntent(Entry):
    """Instances that are about to be launched. The token makes a repeated call idempotent. `hosts`
    are those to choose from; empty means any."""

    kind = "launch_intent"
    token: str
    node_type: str
    count: int
    why: str
    at: float
    throttled: bool = True
    market: str = "on-demand"
    zone: str = ""
    price_per_hour: float | None = None
    hosts: Sequence[str] = ()


@dataclass(frozen=True)
class IntentResolved(Entry):
    """A launch has returned: its instances are nodes now, or it failed."""

    kind = "intent_resolved"
    token: str


@dataclass(frozen=True)
class Failure(Entry):
    """An instance could not be launched, or not be set up as a node."""

    kind = "failure"
    failure: LaunchFailure
    text: str


@dataclass(frozen=True)
class Success(Entry):
    """A launch or setup of this node type succeeded: its earlier failures no longer count."""

    kind = "success"
    node_type: str
    step: Literal["launch", "setup"]


@dataclass(frozen=True)
class Blocked(Entry):
    """A node type is not launched again before the next `shoal up`."""

    kind = "blocked"
    node_type: str
    why: str


@dataclass(frozen=True)
class ConfigApplied(Entry):
    """`shoal up` wrote a config with this stamp: blocked node types may be launched again."""

    kind = "config_applied"
    stamp: int
    at: float


@dataclass(frozen=True)
class Decision(Entry):
    """A decision and its reason, for people to read. `cause` is the reason's class, empty if it has
    none."""

    kind = "decision"
    at: float
    action: Action
    subject: str
    why: str
    cause: str = ""


@dataclass
class ControllerState:
    """Everything that must survive a crash of the controller.

    nodes:           the cluster's nodes, by instance id
    gone:            nodes whose instances were terminated, the most recent ones, by instance id
    intents:         launches that have not returned yet, by token
    applied_config:  stamp and time of the config that is in force
    failures:        launches and setups that failed since then, without a later success
    blocked:         node types that are not launched again, with the reason
    decisions:       the most recent decisions
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    gone: dict[str, Node] = field(default_factory=dict)
    intents: dict[str, LaunchIntent] = field(default_factory=dict)
    applied_config: ConfigApplied = ConfigApplied(0, float("-inf"))
    failures: tuple[Failure, ...] = ()
    blocked: dict[str, str] = field(default_factory=dict)
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=_MAX_DECISIONS))

    def apply(self, entry: Entry) -> None:
        """Change the state as an entry says."""
        if isinstance(entry, NodeUpdated):
            self._update_node(entry.node)
        elif isinstance(entry, LaunchIntent):
            self.intents[entry.token] = entry
        elif isinstance(entry, IntentResolved):
            self.intents.pop(entry.token, None)
        elif isinstance(entry, Failure):
            self.failures = (*self.failures, entry)[-_MAX_FAILURES:]
        elif isinstance(entry, Success):
            self.failures = tuple(f for f in self.failures if not _is_cleared(f, entry))
        elif isinstance(entry, Blocked):
            self.blocked[entry.node_type] = entry.why
        elif isinstance(entry, ConfigApplied):
            self.applied_config = entry
            self.blocked.clear()
            self.failures = ()
        elif isinstance(entry, Decision):
            self.decisions.append(entry)

    def entries(self) -> Iterator[Entry]:
        """The fewest entries that replay to this state."""
        yield from (NodeUpdated(node) for node in self.gone.values())
        yield from (NodeUpdated(node) for node in self.nodes.values())
        yield from self.intents.values()
        if self.applied_config.stamp:
            yield self.applied_config
        yield from self.failures
        yield from (Blocked(node_type, why) for node_type, why in self.blocked.items())
        yield from self.decisions

    def _update_node(self, node: Node) -> None:
        if node.phase is not Phase.GONE:
            self.nodes[node.id] = node
            self.gone.pop(node.id, None)  # a machine of provider type local can return
            return
        self.nodes.pop(node.id, None)
        self.gone[node.id] = node
        while len(self.gone) > _MAX_GONE:
            del self.gone[next(iter(self.gone))]


def _is_cleared(entry: Failure, success: Success) -> bool:
    step = "setup" if entry.failure.kind == "setup" else "launch"
    return (entry.failure.node_type, step) == (success.node_type, success.step)


_ENTRY_TYPES: Mapping[str, type[Entry]] = {
    cls.kind: cls
    for cls in (
        NodeUpdated,
        LaunchIntent,
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
    """The entry that `to_line` wrote. Raises ValueError for any other line."""
    data: dict[str, Any] = json.loads(line)
    fields = {name: value for name, value in data.items() if name != "kind"}
    try:
        if data["kind"] == NodeUpdated.kind:
            node = dict(fields["node"])
            return NodeUpdated(Node(**{**node, "phase": Phase(node["phase"])}))
        if data["kind"] == Failure.kind:
            return Failure(LaunchFailure(**fields["failure"]), fields["text"])
        return _ENTRY_TYPES[data["kind"]](**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a journal entry: {error}") from None
