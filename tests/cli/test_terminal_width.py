"""What a terminal of 60, 80 and 120 columns shows."""

from __future__ import annotations

import io

import pytest
from click import unstyle
from rich.console import Console

from shoal.cli.formatting import columns
from shoal.cli.render.live import LiveRenderer
from shoal.core.errors import IncompleteError
from shoal.core.events import Event, NodeChanged, Output
from shoal.core.node_phase import Phase

RAY_LOG = (
    "2026-11-16 14:44:51,123\tINFO scripts.py:1082 -- Ray runtime started on this node. To connect "
    "to this Ray cluster, run ray start --address='127.77.0.1:20000' or use ray.init()"
)
NODES: list[Event] = [
    NodeChanged("head", "head", "head", Phase.READY, "", "127.77.0.1"),
    NodeChanged("worker-1", "ray.worker.default", "worker", Phase.STARTING, "", "127.77.0.2"),
    NodeChanged("worker-12", "ray.worker.default", "worker", Phase.PREPARING, "", "127.77.0.3"),
    Output("worker-1", RAY_LOG),
    Output("worker-12", RAY_LOG),
]


def live_renderer(width: int, file: io.StringIO) -> LiveRenderer:
    renderer = LiveRenderer(verbose=False)
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    renderer._console = renderer._live.console = console
    return renderer


@pytest.fixture(params=[60, 80, 120])
def width(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


def drawn(renderer: LiveRenderer) -> list[str]:
    with renderer._console.capture() as capture:
        renderer._console.print(renderer._draw())
    return capture.get().splitlines()


def test_the_live_table_shows_node_type_and_phase_whatever_a_node_prints(width: int) -> None:
    renderer = live_renderer(width, io.StringIO())
    for event in NODES:
        renderer.event(event)
    renderer._live.stop()
    lines = drawn(renderer)
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)
    for line, cells in zip(
        lines,
        (
            ("head", "head", "ready"),
            ("worker-1", "ray.worker.default", "starting"),
            ("worker-12", "ray.worker.default", "preparing"),
        ),
        strict=True,
    ):
        assert tuple(line.split()[1:4]) == cells


def test_the_last_line_of_output_begins_with_its_message(width: int) -> None:
    renderer = live_renderer(width, io.StringIO())
    renderer.event(NodeChanged("worker-1", "worker", "worker", Phase.STARTING, "", "127.77.0.2"))
    renderer.event(Output("worker-1", RAY_LOG))
    renderer._live.stop()
    assert "Ray runtime" in drawn(renderer)[0]


def test_a_long_node_name_leaves_no_column_out(width: int) -> None:
    renderer = live_renderer(width, io.StringIO())
    name = "ray-experiment-worker-i-0abc123456789"
    renderer.event(NodeChanged(name, "cpu", "worker", Phase.PREPARING, "", "203.0.113.7"))
    renderer.event(Output(name, RAY_LOG))
    renderer._live.stop()
    (line,) = drawn(renderer)
    _, shown, node_type, phase, seconds = line.split()[:5]
    assert name.startswith(shown.rstrip("…"))
    assert (node_type, phase) == ("cpu", "preparing")
    assert seconds.endswith("s")


def test_a_hint_stays_one_line_so_that_it_can_be_copied(width: int) -> None:
    file = io.StringIO()
    command = (
        "shoal exec a-cluster-with-a-name 'python train.py --epochs 10 --data /mnt/data' -p 80"
    )
    live_renderer(width, file).error(IncompleteError("it failed", fix=command * 2))
    assert command * 2 in file.getvalue()


def test_a_table_wraps_its_last_column_to_the_terminal(width: int) -> None:
    reason = "8 pending tasks/actors of {CPU: 1} do not fit; adding the cheapest nodes"
    rows = [("14:44:51", "launch", "2 x worker", reason), ("14:45:01", "drain", "worker-1", "idle")]
    lines = columns(("time", "action", "subject", "reason"), rows, width)
    assert all(len(unstyle(line)) <= width for line in lines)
    assert lines[1].startswith("14:44:51  launch  2 x worker  8 pending")
    assert lines[-1] == "14:45:01  drain   worker-1    idle"
    wrapped = [line.removeprefix("14:44:51  launch  2 x worker").strip() for line in lines[1:-1]]
    assert " ".join(wrapped) == reason


def test_a_table_that_leaves_no_room_continues_below_the_line() -> None:
    lines = columns(("a", "b"), [("x" * 50, "some words that do not fit")], 60)
    assert lines[1:] == ["x" * 50, "    some words that do not fit"]


def test_a_table_in_a_pipe_is_not_wrapped() -> None:
    (_, line) = columns(("a", "b"), [("x", "word " * 50)])
    assert "\n" not in line
    assert len(line) > 200
