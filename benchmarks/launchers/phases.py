"""Where the time of a launch went: by phase and node, from what the launcher told meanwhile."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.launchers.launch import Launch, Moment


def print_phases(launch: Launch) -> None:
    """A row for each node, a column for each phase, in seconds."""
    rows = {node: _durations(launch, node) for node in dict.fromkeys(m.node for m in launch.told)}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    width = max(map(len, names), default=0)
    print(f"{'seconds in each phase':<{width}} " + " ".join(f"{node:>9}" for node in rows))
    for name in names:
        cells = (f"{row[name]:9.2f}" if name in row else " " * 9 for row in rows.values())
        print(f"{name:<{width}} " + " ".join(cells))


def _durations(launch: Launch, node: str) -> dict[str, float]:
    """How long a node was in each phase. What came before the first is the launcher's own."""
    moments = [m for m in launch.told if m.node == node]
    durations = {"before": moments[0].seconds}
    for moment, following in pairwise([*moments, Moment(launch.returned, node, "")]):
        durations[moment.text] = (
            durations.get(moment.text, 0.0) + following.seconds - moment.seconds
        )
    return durations
