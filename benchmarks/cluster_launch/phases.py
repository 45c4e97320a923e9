"""Where the time of a launch went, by phase and node, from the launcher's own events."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.cluster_launch.launchers import Launch, NodeEvent


def print_phases(launch: Launch) -> None:
    """A row for each phase, a column for each node, in seconds."""
    rows = {
        node: _durations(launch, node) for node in dict.fromkeys(m.node for m in launch.node_events)
    }
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    width = max(map(len, names), default=0)
    print(f"{'seconds in each phase':<{width}} " + " ".join(f"{node:>9}" for node in rows))
    for name in names:
        cells = (f"{row[name]:9.2f}" if name in row else " " * 9 for row in rows.values())
        print(f"{name:<{width}} " + " ".join(cells))


def _durations(launch: Launch, node: str) -> dict[str, float]:
    """How long a node was in each phase. The time before the first event is the launcher's own."""
    events = [m for m in launch.node_events if m.node == node]
    durations = {"before": events[0].seconds}
    for event, next_event in pairwise([*events, NodeEvent(launch.returned, node, "")]):
        durations[event.text] = durations.get(event.text, 0.0) + next_event.seconds - event.seconds
    return durations
