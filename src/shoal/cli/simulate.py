"""`shoal simulate`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.formatting import columns, duration
from shoal.cli.run import run

if TYPE_CHECKING:
    from shoal.ops.context import Context
    from shoal.ops.simulate import Result
    from shoal.scaling.simulation import Outcome

_WIDTH = 72
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
    "--boot", type=float, default=90, show_default=True, help="Seconds until a machine is a node."
)
@click.option("--failures", type=float, default=0, help="Share of launches that find no capacity.")
@click.option(
    "--interruptions",
    type=float,
    default=0,
    help="How often an hour a spot machine is taken away.",
)
@click.option(
    "--interval", type=float, default=10, show_default=True, help="Seconds between plans."
)
@click.option("--seed", type=int, default=0, help="Another seed, another run of luck.")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw node counts into this file.",
)
@click.option("--json", "json", is_flag=True, help="Print for a program: JSON only.")
def command(
    cluster: str,
    trace: Path,
    changes: tuple[str, ...],
    boot: float,
    failures: float,
    interruptions: float,
    interval: float,
    seed: int,
    svg: Path | None,
    json: bool,
) -> None:
    """Show what a trace of work would cost on a cluster, and how long it would wait.

    CLUSTER is a cluster file. TRACE has a JSON object on every line: {"at": 0, "resources":
    {"CPU": 1}, "count": 10, "seconds": 60}.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.simulate import compare, read_trace
    from shoal.scaling.simulation import World

    async def operation(ctx: Context) -> list[Result]:
        world = World(
            boot_s=boot, failure_rate=failures, interruptions_per_hour=interruptions,
            interval_s=max(interval, 0.1), seed=seed,
        )  # fmt: skip
        return compare(cluster_lookup.load_file(cluster).spec, read_trace(trace), changes, world)

    results = run(operation, json=json)
    if svg:
        from shoal.cli.render.chart import node_counts

        svg.write_text(node_counts([(r.policy, r.outcome.samples) for r in results]), "utf-8")
    if json:
        click.echo(jsonlib.dumps([{"policy": r.policy, **asdict(r.outcome)} for r in results]))
        return
    for line in _lines(results):
        click.echo(line)


def _lines(results: list[Result]) -> list[str]:
    header = ("", *(result.policy for result in results))
    cells = [_cells(result.outcome) for result in results]
    rows = [(name, *(c[name] for c in cells)) for name in cells[0]]
    lines = columns(header, rows)
    end = max(result.outcome.seconds for result in results)
    top = max(1, *(result.outcome.peak_nodes for result in results))
    for result in results:
        title = f"nodes over {duration(end)}, {result.policy} (full height: {top})"
        lines += ["", click.style(title, dim=True), _sparkline(result, end, top)]
    if not all(result.outcome.priced for result in results):
        note = "some prices are not known, and count as nothing in the cost"
        lines += ["", click.style(note, fg="yellow")]
    return lines


def _cells(o: Outcome) -> dict[str, str]:
    return {
        "cost": f"${o.cost:,.2f}",
        "wait, half of all": duration(o.wait_p50),
        "wait, 90%": duration(o.wait_p90),
        "wait, 99%": duration(o.wait_p99),
        "wait, longest": duration(o.wait_max),
        "tasks": f"{o.tasks:,}",
        "never ran": f"{o.unfinished:,}",
        "most nodes": f"{o.peak_nodes:,}",
        "node hours": f"{o.node_hours:,.1f}",
        "busy": f"{o.busy_share:.0%}",
        "launches": f"{o.launches:,}",
        "no capacity": f"{o.failures:,}",
        "interrupted": f"{o.interruptions:,}",
    }


def _sparkline(result: Result, end: float, top: int) -> str:
    """The most nodes in each slice of time; between two samples nothing changes."""
    samples = result.outcome.samples
    line, index, now = [], 0, 0
    for column in range(_WIDTH):
        until = end * (column + 1) / _WIDTH
        most = now
        while index < len(samples) and samples[index].at <= until:
            now = samples[index].ready + samples[index].on_the_way
            most = max(most, now)
            index += 1
        line.append(_BLOCKS[-(-most * (len(_BLOCKS) - 1) // top)])
    return "".join(line)
