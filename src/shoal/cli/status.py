"""`shoal status`"""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.controller_status import controller_lines
from shoal.cli.formatting import columns, duration, gib, number, terminal_width
from shoal.cli.run import output_options, run, run_until_interrupted
from shoal.core.money import dollars, per_hour

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.status import ClusterStatus, NodeStatus
    from shoal.ops.watch_status import WatchedStatus

every_option = click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between updates.",
)

_NOT_UP = 3
_NOT_READY = 4


@click.command("status")
@cluster_argument
@click.option("--watch", is_flag=True, help="Show it repeatedly, with the cost so far.")
@every_option
@cluster_ref_options
@output_options
def command(ref: ClusterRef, watch: bool, every: float, json: bool, verbose: int) -> None:
    """Show a cluster's nodes and resource usage.

    Exits with 0 when all nodes are ready, 3 when the cluster is not up, and 4 when nodes are
    missing. Draining and terminating nodes do not count as missing.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.status import status

    if watch:
        watch_status(ref, every, json=json, verbose=verbose)
        return

    async def operation(ctx: Context) -> ClusterStatus:
        return await status(ctx, await cluster_lookup.resolve(ctx, ref))

    result = run(operation, json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(jsonlib.dumps(asdict(result)))
    else:
        for line in status_lines(result):
            click.echo(line)
    if not result.ready:
        sys.exit(_NOT_READY if result.nodes else _NOT_UP)


def watch_status(ref: ClusterRef, every: float, *, json: bool, verbose: int) -> None:
    """Show nodes, demand, cost and the last decisions repeatedly, until Ctrl-C."""
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.watch_status import watch

    def show(watched: WatchedStatus) -> None:
        if json:
            cost = asdict(watched.cost) if watched.cost is not None else None
            content = {**asdict(watched.status), "cost": cost, "problem": watched.problem}
            click.echo(jsonlib.dumps(content))
            return
        lines = watch_lines(watched)
        if sys.stdout.isatty():
            # Written over, not cleared first: that would flicker.
            click.echo("\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J", nl=False)
        else:
            click.echo("\n".join(lines))

    async def operation(ctx: Context) -> None:
        if sys.stdout.isatty() and not json:
            click.clear()
        await watch(ctx, await cluster_lookup.resolve(ctx, ref), show, every=every)

    run_until_interrupted(operation, json=json, verbose=verbose, result_only=True)


def watch_lines(watched: WatchedStatus) -> list[str]:
    """A cluster's status and cost as text."""
    lines = status_lines(watched.status)
    if watched.problem:
        lines.insert(0, click.style(f"not up to date: {watched.problem}", fg="red"))
    if (cost := watched.cost) is not None:
        at_least = "" if cost.complete else "at least "
        parts = [
            f"{row.node_type} {row.market} {dollars(row.cost)}".replace("  ", " ")
            for row in cost.rows
            if row.cost is not None
        ]
        lines.append(f"cost so far: {at_least}{dollars(cost.cost)} ({', '.join(parts)})")
    return lines


def status_lines(status: ClusterStatus) -> list[str]:
    """A cluster's status as text."""
    name = click.style(status.cluster, bold=True)
    if not status.nodes:
        line = f"{name} ({status.provider}) is not up"
        return [f"{line}: {status.shutdown}" if status.shutdown else line]
    ready = sum(node.phase == "ready" for node in status.nodes)
    expected = len(status.expected) + sum(status.missing.values())
    title = f"{name} ({status.provider}): {ready} of {expected} nodes ready"
    if leaving := sum(node.is_leaving for node in status.nodes):
        title += f", {leaving} leaving"
    if status.address:
        title += f", Ray at {status.address}"
    if status.price_per_hour:
        title += f", {per_hour(status.price_per_hour)}"
    header = ("node", "type", "phase", "address", "age", "in use")
    table = columns(header, [_row(node) for node in status.nodes], terminal_width())
    missing = [
        click.style(f"missing: {count} x {node_type} (min_workers)", fg="red")
        for node_type, count in status.missing.items()
    ]
    return [title, *table, *missing, *controller_lines(status)]


def _row(node: NodeStatus) -> tuple[str, ...]:
    colour = {"ready": "green", "failed": "red"}.get(node.phase.value, "yellow")
    return (
        node.name,
        node.node_type,
        click.style(node.phase.value, fg=colour),
        node.address,
        "" if node.age_s is None else duration(node.age_s),
        "; ".join(filter(None, (_usage(node), node.detail))),
    )


def _usage(node: NodeStatus) -> str:
    """Used and total amount of each declared resource."""
    parts = []
    for name, total in sorted(node.total.items()):
        if name.startswith("node:") or name == "object_store_memory":
            continue
        used = total - node.available.get(name, 0.0)
        if name == "memory":
            parts.append(f"{gib(used)}/{gib(total)} memory")
        else:
            parts.append(f"{number(used)}/{number(total)} {name}")
    return ", ".join(parts)
