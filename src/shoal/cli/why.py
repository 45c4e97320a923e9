"""`shoal why`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_ref_options, node_argument, split_node
from shoal.cli.controller_status import decision_lines, pending_lines
from shoal.cli.formatting import duration
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.why import Explanation, NodeHistory


@click.command("why")
@node_argument
@click.option("--cluster", hidden=True, help="The same as CLUSTER.")
@click.option(
    "--pending", is_flag=True, help="Show pending demand and what the controller does about it."
)
@cluster_ref_options
@output_options
def command(
    arguments: tuple[str, ...], ref: ClusterRef, pending: bool, json: bool, verbose: int
) -> None:  # fmt: skip
    """Explain the controller's decisions.

    Shows the latest decisions, or, with NODE, why that node was launched or terminated. CLUSTER is
    a YAML file or the name of a cluster. Default: the only cluster that is up.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.why import why

    ref, node = split_node(arguments, ref)

    async def operation(ctx: Context) -> Explanation:
        return await why(ctx, await cluster_lookup.resolve(ctx, ref), node, pending=pending)

    explanation = run(operation, json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(jsonlib.dumps(asdict(explanation)))
        return
    for line in _lines(explanation, pending=pending):
        click.echo(line)


def _lines(explanation: Explanation, *, pending: bool) -> list[str]:
    lines = [line for node in explanation.nodes for line in _history_lines(node, explanation.now)]
    if pending:
        lines += pending_lines(explanation.waiting, explanation.now) or ["no pending demand"]
    elif not explanation.nodes:
        lines += decision_lines(explanation.decisions) or ["no decisions yet"]
    if not explanation.alive:
        lines.append(
            click.style("the controller is not running: this is its last report", fg="red")
        )
    return lines


def _history_lines(node: NodeHistory, now: float) -> list[str]:
    name = click.style(node.name, bold=True)
    age = duration(max(0.0, now - node.since))
    lines = [f"{name} ({node.node_type}) has been {node.phase} for {age}"]
    if node.why:
        lines.append(f"  launched because: {node.why}")
    if node.ended:
        lines.append(f"  terminated because: {node.ended}")
    elif node.detail:
        lines.append(f"  {node.detail}")
    return lines
