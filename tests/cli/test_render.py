"""The output of an operation on a terminal, in a pipe, and as JSON."""

from __future__ import annotations

import io
import json
import logging

import pytest
from rich.console import Console

from shoal.cli.render.json_lines import JsonRenderer
from shoal.cli.render.live import LiveRenderer
from shoal.cli.render.plain import PlainRenderer
from shoal.core.errors import IncompleteError, SetupError
from shoal.core.events import (
    ClusterReady,
    Event,
    NodeChanged,
    Output,
    PlanStep,
    PriceEstimated,
    PriceItem,
    Stage,
    Warned,
)
from shoal.core.logs import log_to_stderr
from shoal.core.node_phase import Phase

EVENTS: list[Event] = [
    Stage("checking"),
    Warned("docker is ignored", "the nodes share this machine", "remove it"),
    PlanStep("create", "1 x head", "the head"),
    NodeChanged("head", "head", "head", Phase.STARTING, "", "127.77.0.1"),
    Output("head", "downloading \x1b[31mred\x1b[0m things"),
    NodeChanged("head", "head", "head", Phase.READY, "", "127.77.0.1"),
    ClusterReady("c", 1, 2.5, "127.77.0.1:20000", "", (("terminate it", "shoal down c"),)),
]


def test_plain_lines_go_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PlainRenderer(verbose=False) as renderer:
        for event in EVENTS:
            renderer.event(event)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "warning: docker is ignored" in printed.err
    assert "+ create    1 x head" in printed.err
    assert "head         ready" in printed.err
    assert "downloading" not in printed.err
    assert "c is ready: 1 node in 2.5 s" in printed.err


def test_verbose_shows_node_output_with_the_nodes_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PlainRenderer(verbose=True) as renderer:
        renderer.event(Output("worker-1", "hello"))
    assert capsys.readouterr().err == "worker-1 | hello\n"


def test_json_output_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonRenderer() as renderer:
        for event in EVENTS:
            renderer.event(event)
        renderer.error(SetupError("it failed", why="so", fix="do", node="head", output=["last"]))
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["event"] for r in records] == [
        "stage", "warning", "plan", "node", "output", "node", "ready", "error",
    ]  # fmt: skip
    assert records[3]["phase"] == "starting"
    assert records[-1] == {
        "event": "error", "class": "setup", "what": "it failed", "why": "so", "fix": "do",
        "node": "head", "output": ["last"], "exit_code": 6,
    }  # fmt: skip


def test_an_error_shows_what_why_last_output_and_each_fix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = IncompleteError(
        "1 of 2 failed", why="a: no", fix="correct it\nup again", output=["x", "y"]
    )
    PlainRenderer(verbose=False).error(error)
    assert capsys.readouterr().err.splitlines() == [
        "error: 1 of 2 failed",
        "  why: a: no",
        "  | x",
        "  | y",
        "  fix: correct it",
        " then: up again",
    ]


def test_the_live_table_shows_phases_and_strips_escape_codes_of_nodes() -> None:
    renderer = LiveRenderer(verbose=False)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    renderer._console = renderer._live.console = console
    with renderer:
        for event in EVENTS[:-2]:
            renderer.event(event)
        renderer._live.refresh()
        middle = file.getvalue()
        for event in EVENTS[-2:]:
            renderer.event(event)
    assert "starting" in middle
    assert "downloading red things" in middle
    assert "\x1b[31mred" not in middle
    assert "ready" in file.getvalue()
    assert "shoal down c" in file.getvalue()


def test_a_price_estimate_shows_its_items_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    items = (
        PriceItem(1, "head", "m5.large", "on-demand", 0.096),
        PriceItem(2, "gpu", "g5.xlarge", "spot", 0.4, "100 GiB gp3", 0.011),
        PriceItem(1, "odd", "x99.huge", "on-demand", None),
    )
    with PlainRenderer(verbose=False) as renderer:
        renderer.event(PriceEstimated("c", items, 0.896, False, "the catalog of 2026-08"))
    printed = capsys.readouterr().err
    assert "price of c: at least $0.90/h, from the catalog of 2026-08" in printed
    assert "2 x gpu (g5.xlarge spot): $0.40/h each, and $0.01/h for 100 GiB gp3" in printed
    assert "1 x odd (x99.huge on-demand): price unknown" in printed


def test_log_records_are_printed_above_the_live_table() -> None:
    """Otherwise they would be drawn over by it."""
    terminal = io.StringIO()
    renderer = LiveRenderer(verbose=True)
    renderer._console = renderer._live.console = Console(
        file=terminal, force_terminal=True, width=100, stderr=True
    )
    logger = logging.getLogger("shoal")
    handlers = list(logger.handlers)
    log_to_stderr(2)
    try:
        with renderer:
            renderer.event(EVENTS[3])
            logging.getLogger("shoal.ops.up").debug("retrying a launch")
    finally:
        logger.handlers = handlers
        logger.setLevel(logging.NOTSET)
    assert "retrying a launch" in terminal.getvalue()
