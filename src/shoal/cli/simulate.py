"""`shoal simulate`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.formatting import columns, duration
from shoal.cli.run import json_option, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.ops.context import Context
    from shoal.ops.simulate import PolicyResult
    from shoal.scaling.simulation import Sample, SimulationResult

_WIDTH = 72
_SECONDS = click.FloatRange(0, 86400)
_BLOCKS = " ▁▂▃▄▅▆▇█"


@click.command("simulate")
@click.argument("cluster", type=click.Path(dir_okay=False))
@click.argument("trace", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--with",
    "changes",
    multiple=True,
    metavar="NAME=VALUE,...",
    help="Also simulate with these settings changed, e.g. idle_timeout_minutes=1.",
)
@click.option(
    "--boot",
    "boots",
    type=_SECONDS,
    multiple=True,
    default=(90,),
    show_default=True,
    help="Seconds from launch until a node is ready; repeat it with several measured times, which "
    "the launches take in turn.",
)
@click.option(
    "--failures",
    type=click.FloatRange(0, 1),
    default=0,
    help="Share of launches that fail for lack of capacity.",
)
@click.option(
    "--interruptions",
    type=click.FloatRange(0, 1000),
    default=0,
    help="Interruptions per hour of each spot instance.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 86400),
    default=1,
    show_default=True,
    help="Seconds between plans, at least.",
)
@click.option(
    "--reaction",
    type=_SECONDS,
    default=0.5,
    show_default=True,
    help="Seconds from a change, such as a task that waits, until a plan sees it.",
)
@click.option(
    "--worker-start",
    type=_SECONDS,
    default=0.5,
    show_default=True,
    help="Seconds that Ray takes to start a worker process for a task.",
)
@click.option("--seed", type=int, default=0, help="Random seed.")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a chart of the node counts to this file.",
)
@json_option
def command(
    cluster: str,
    trace: Path,
    changes: tuple[str, ...],
    boots: tuple[float, ...],
    failures: float,
    interruptions: float,
    interval: float,
    reaction: float,
    worker_start: float,
    seed: int,
    svg: Path | None,
    json: bool,
) -> None:
    """Simulate a trace of work on a cluster: cost, waiting times, node counts.

    CLUSTER is a cluster file. TRACE has one JSON object per line: {"at": 0, "resources":
    {"CPU": 1}, "count": 10, "seconds": 60}.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.simulate import compare, read_trace
    from shoal.scaling.simulation import SimulationSettings

    async def operation(ctx: Context) -> list[PolicyResult]:
        settings = SimulationSettings(
            boot_s=boots[0], measured_boots_s=boots if len(boots) > 1 else (),
            failure_rate=failures, interruptions_per_hour=interruptions,
            interval_s=interval, reaction_s=reaction, worker_start_s=worker_start, seed=seed,
        )  # fmt: skip
        spec = cluster_lookup.load_file(cluster).spec
        return compare(spec, read_trace(trace), changes, settings)

    results = run(operation, json=json)
    if svg:
        from shoal.cli.render.chart import node_counts

        svg.write_text(node_counts([(r.policy, r.result.samples) for r in results]), "utf-8")
    if json:
        click.echo(jsonlib.dumps([{"policy": r.policy, **asdict(r.result)} for r in results]))
        return
    for line in _lines(results):
        click.echo(line)


def _lines(results: list[PolicyResult]) -> list[str]:
    header = ("", *(policy_result.policy for policy_result in results))
    cells = [_cells(policy_result.result) for policy_result in results]
    rows = [(name, *(c[name] for c in cells)) for name in cells[0]]
    lines = columns(header, rows)
    end = max(policy_result.result.seconds for policy_result in results)
    top = max(1, *(policy_result.result.peak_nodes for policy_result in results))
    for policy_result in results:
        title = f"nodes over {duration(end)}, {policy_result.policy} (full height: {top})"
        lines += [
            "",
            click.style(title, dim=True),
            _sparkline(policy_result.result.samples, end, top),
        ]
    if not all(policy_result.result.priced for policy_result in results):
        note = "some prices are unknown and count as $0"
        lines += ["", click.style(note, fg="yellow")]
    return lines


def _cells(result: SimulationResult) -> dict[str, str]:
    return {
        "cost": f"${result.cost:,.2f}",
        "wait, median": duration(result.wait_p50),
        "wait, 90%": duration(result.wait_p90),
        "wait, 99%": duration(result.wait_p99),
        "wait, maximum": duration(result.wait_max),
        "tasks": f"{result.tasks:,}",
        "unfinished": f"{result.unfinished:,}",
        "peak nodes": f"{result.peak_nodes:,}",
        "node hours": f"{result.node_hours:,.1f}",
        "busy": f"{result.busy_share:.0%}",
        "launches": f"{result.launches:,}",
        "failed launches": f"{result.failures:,}",
        "interruptions": f"{result.interruptions:,}",
    }


def _sparkline(samples: Sequence[Sample], end: float, top: int) -> str:
    """The highest node count in each slice of time; between two samples nothing changes."""
    blocks, index, nodes = [], 0, 0
    for column in range(_WIDTH):
        until = end * (column + 1) / _WIDTH
        highest = nodes
        while index < len(samples) and samples[index].at <= until:
            nodes = samples[index].ready + samples[index].launching
            highest = max(highest, nodes)
            index += 1
        blocks.append(_BLOCKS[-(-highest * (len(_BLOCKS) - 1) // top)])
    return "".join(blocks)
