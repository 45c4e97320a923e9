"""What a person and a program see of an operation."""

from __future__ import annotations

import io
import json

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
from shoal.core.node_phase import Phase

STORY: list[Event] = [
    Stage("checking"),
    Warned("docker is ignored", "the nodes share this machine", "take it out"),
    PlanStep("create", "1 x head", "the head"),
    NodeChanged("head", "head", "head", Phase.STARTING, "", "127.77.0.1"),
    Output("head", "downloading \x1b[31mred\x1b[0m things"),
    NodeChanged("head", "head", "head", Phase.READY, "", "127.77.0.1"),
    ClusterReady("c", 1, 2.5, "127.77.0.1:20000", "", (("give it back", "shoal down c"),)),
]


def test_plain_lines_go_to_standard_error_and_leave_output_to_results(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PlainRenderer(verbose=False) as screen:
        for event in STORY:
            screen.event(event)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "warning: docker is ignored" in printed.err
    assert "+ create    1 x head" in printed.err
    assert "head         ready" in printed.err
    assert "downloading" not in printed.err
    assert "c is ready: 1 node in 2.5 s" in printed.err


def test_verbose_shows_what_nodes_print_with_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PlainRenderer(verbose=True) as screen:
        screen.event(Output("worker-1", "hello"))
    assert capsys.readouterr().err == "worker-1 | hello\n"


def test_a_program_gets_one_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonRenderer() as screen:
        for event in STORY:
            screen.event(event)
        screen.error(SetupError("it failed", why="so", fix="do", node="head", output=["last"]))
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["event"] for r in records] == [
        "stage", "warning", "plan", "node", "output", "node", "ready", "error",
    ]  # fmt: skip
    assert records[3]["phase"] == "starting"
    assert records[-1] == {
        "event": "error", "class": "setup", "what": "it failed", "why": "so", "fix": "do",
        "node": "head", "output": ["last"], "exit_code": 6,
    }  # fmt: skip


def test_an_error_says_what_why_the_last_lines_and_each_way_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = IncompleteError(
        "1 of 2 failed", why="a: no", fix="mend it\nup again", output=["x", "y"]
    )
    PlainRenderer(verbose=False).error(error)
    assert capsys.readouterr().err.splitlines() == [
        "error: 1 of 2 failed",
        "  why: a: no",
        "  | x",
        "  | y",
        "  fix: mend it",
        " then: up again",
    ]


def test_the_live_table_shows_phases_and_lets_no_terminal_codes_of_a_node_through() -> None:
    screen = LiveRenderer(verbose=False)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    screen._console = screen._live.console = console
    with screen:
        for event in STORY[:-2]:
            screen.event(event)
        screen._live.refresh()
        middle = file.getvalue()
        for event in STORY[-2:]:
            screen.event(event)
    assert "starting" in middle
    assert "downloading red things" in middle
    assert "\x1b[31mred" not in middle
    assert "ready" in file.getvalue()
    assert "shoal down c" in file.getvalue()


def test_the_price_is_told_with_its_parts_and_its_date(capsys: pytest.CaptureFixture[str]) -> None:
    items = (
        PriceItem(1, "head", "m5.large", "on-demand", 0.096),
        PriceItem(2, "gpu", "g5.xlarge", "spot", 0.4),
        PriceItem(1, "odd", "x99.huge", "on-demand", None),
    )
    with PlainRenderer(verbose=False) as screen:
        screen.event(PriceEstimated("c", items, 0.896, False, "the catalog of 2026-08"))
    told = capsys.readouterr().err
    assert "$0.90 an hour, and what has no price here, by the catalog of 2026-08" in told
    assert "2 x gpu (g5.xlarge spot): $0.4 each" in told
    assert "1 x odd (x99.huge on-demand): price unknown" in told
