"""`shoal doctor`"""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.render.messages import finding_lines
from shoal.cli.run import output_options, run
from shoal.core.errors import ConfigError

if TYPE_CHECKING:
    from shoal.core.events import PreflightFinding
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("doctor")
@cluster_argument
@cluster_ref_options
@output_options
def command(ref: ClusterRef, json: bool, verbose: int) -> None:
    """Run the preflight checks of a cluster file.

    CLUSTER is a YAML file, the http(s) URL of one, or the name of a cluster. Reports all problems
    at once, each with the reason, the line of the file, and the fix. For a running cluster, it
    also reports nodes that cannot join. Nothing is created or changed.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.preflight import diagnose

    async def operation(ctx: Context) -> list[PreflightFinding]:
        return await diagnose(ctx, await cluster_lookup.load(ctx, ref))

    findings = run(operation, json=json, verbose=verbose, result_only=True)
    errors = sum(finding.severity == "error" for finding in findings)
    if json:
        click.echo(jsonlib.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            click.echo("\n".join(finding_lines(finding)))
        click.echo(_summary(len(findings), errors))
    if errors:
        sys.exit(ConfigError.exit_code)


def _summary(findings: int, errors: int) -> str:
    if not findings:
        return click.style("no problems found", fg="green")
    warnings = findings - errors
    parts = [f"{errors} error{'s' * (errors != 1)}"] if errors else []
    parts += [f"{warnings} warning{'s' * (warnings != 1)}"] if warnings else []
    return " and ".join(parts)
