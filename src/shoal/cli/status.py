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
from shoal.cli.run import output_options, run
from shoal.core.money import per_hour

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.status import ClusterStatus, NodeStatus

_NOT_UP = 3
_NOT_READY = 4


@click.command("status")
@cluster_argument
@cluster_ref_options
@output_options
def command(ref: ClusterRef, json: bool, verbose: int) -> None:
    """Show a cluster's nodes and resource usage.

    Exits with 0 when all nodes are ready, 3 when the cluster is not up, and 4 when nodes are
    missing. Draining and terminating nodes do not count as missing.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.status import status

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
