"""`shoal why`"""

from __future__ import annotations

import json as jsonlib
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import which_cluster
from shoal.cli.controller_status import decision_lines, waiting_lines
from shoal.cli.formatting import duration
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.why import Account, Story


@click.command("why")
@click.argument("node", required=False)
@click.option("--cluster", help="Which cluster: a name or a file. Without it, the one that is up.")
@click.option("--pending", is_flag=True, help="Tell what becomes of the work that waits.")
@which_cluster
@output_options
def command(wanted: ClusterRef, node: str | None, pending: bool, json: bool, verbose: bool) -> None:
    """Tell why the cluster is as it is.

    Without NODE, the controller's last decisions; with it, why that node exists or was ended.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.why import why

    async def operation(ctx: Context) -> Account:
        return await why(ctx, await cluster_lookup.resolve(ctx, wanted), node, pending=pending)

    account = run(operation, json=json, verbose=verbose, answers=True)
    if json:
        click.echo(jsonlib.dumps(asdict(account)))
        return
    for line in _lines(account, pending=pending):
        click.echo(line)


def _lines(account: Account, *, pending: bool) -> list[str]:
    lines = [line for story in account.stories for line in _story(story)]
    if pending:
        lines += waiting_lines(account.waiting) or ["nothing waits"]
    elif not account.stories:
        lines += decision_lines(account.decisions) or ["nothing has been decided yet"]
    if not account.alive:
        lines.append(
            click.style("the controller does not run: this is what it said last", fg="red")
        )
    return lines


def _story(story: Story) -> list[str]:
    name = click.style(story.name, bold=True)
    age = duration(max(0.0, time.time() - story.since))
    lines = [f"{name} ({story.node_type}) has been {story.phase} for {age}"]
    if story.why:
        lines.append(f"  it exists because: {story.why}")
    if story.ended:
        lines.append(f"  it ended because: {story.ended}")
    elif story.detail:
        lines.append(f"  {story.detail}")
    return lines
