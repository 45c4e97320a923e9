"""`shoal doctor`"""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.render.messages import finding
from shoal.cli.run import run
from shoal.core.errors import ConfigError

if TYPE_CHECKING:
    from shoal.core.events import PreflightFinding
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("doctor")
@cluster_argument
@cluster_ref_options
@click.option("--json", "json", is_flag=True, help="Print for a program: JSON only.")
def command(ref: ClusterRef, json: bool) -> None:
    """Find what would keep a cluster from coming up, before a cent is spent.

    CLUSTER is a YAML file, an http(s) address of one, or the name of a cluster that is up, of
    which it also tells nodes that cannot join. Everything that is found is told at once: what, why,
    the line of the file, and the fix. Nothing is created or changed.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.preflight import diagnose

    async def operation(ctx: Context) -> list[PreflightFinding]:
        return await diagnose(ctx, await cluster_lookup.load(ctx, ref))

    found = run(operation, json=json, answers=True)
    errors = sum(one.severity == "error" for one in found)
    if json:
        click.echo(jsonlib.dumps([asdict(one) for one in found]))
    else:
        for one in found:
            click.echo("\n".join(finding(one)))
        click.echo(_summary(len(found), errors))
    if errors:
        sys.exit(ConfigError.exit_code)


def _summary(findings: int, errors: int) -> str:
    if not findings:
        return click.style("nothing was found that would keep it from coming up", fg="green")
    rest = findings - errors
    parts = [f"{errors} error{'s' * (errors != 1)}"] if errors else []
    parts += [f"{rest} warning{'s' * (rest != 1)}"] if rest else []
    return " and ".join(parts)
