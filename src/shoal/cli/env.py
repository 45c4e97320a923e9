"""`shoal env`"""

from __future__ import annotations

import json as jsonlib
import shlex
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.env import ConnectionEnv


@click.command("env")
@cluster_argument
@cluster_ref_options
@output_options
def command(ref: ClusterRef, json: bool, verbose: int) -> None:
    """Print the environment with which your own programs connect to a cluster.

    \b
    eval "$(shoal env)"       then python, ray status and notebooks find the cluster
    shoal env --json          the same for a program

    The token in it, or the file that it names, grants access: keep it secret.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.env import connection_env

    async def operation(ctx: Context) -> ConnectionEnv:
        return await connection_env(ctx, await cluster_lookup.resolve(ctx, ref))

    env = run(operation, json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(jsonlib.dumps(env.variables))
        return
    for name, value in env.variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    if env.tunnel:
        click.echo(f"for `ray job submit`, while this runs: {env.tunnel}", err=True)
