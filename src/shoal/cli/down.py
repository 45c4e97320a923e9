"""`shoal down`"""

from __future__ import annotations

import sys

import click

from shoal.cli.session import run, shared_options, yes_option


@click.command("down")
@click.argument("cluster", required=False)
@click.option("--all", "everything", is_flag=True, help="Every cluster known here.")
@yes_option
@shared_options
def command(
    cluster: str | None,
    everything: bool,
    yes: bool,
    json: bool,
    verbose: bool,
    cluster_name: str | None,
) -> None:
    """Give a cluster's machines back.

    CLUSTER is a YAML file or the name of a cluster; without it, the only one that is up.
    """
    from shoal import spec
    from shoal.ops import target
    from shoal.ops.context import Context
    from shoal.ops.down import down

    if everything and (cluster or cluster_name):
        raise click.UsageError("Name a cluster or use --all, not both.")

    async def operation(ctx: Context) -> bool:
        if everything:
            specs = [target.recall(ctx, name) for name in await target.names(ctx)]
        else:
            overrides = spec.Overrides(cluster_name=cluster_name)
            specs = [await target.resolve(ctx, cluster, overrides)]
        results = [await down(ctx, wanted) for wanted in specs]
        return all(result.ended is not None for result in results)

    if not run(operation, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
