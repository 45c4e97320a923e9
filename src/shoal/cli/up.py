"""`shoal up`"""

from __future__ import annotations

import sys

import click

from shoal.cli.session import run, shared_options, yes_option


@click.command("up")
@click.argument("cluster", required=False)
@click.option("--min-workers", type=int, help="Override the file's min_workers.")
@click.option("--max-workers", type=int, help="Override the file's max_workers.")
@click.option("--no-restart", is_flag=True, help="Apply changes without restarting Ray.")
@click.option("--restart-only", is_flag=True, help="Only restart Ray, without setup.")
@click.option("--force", is_flag=True, help="Take machines that another cluster has claimed.")
@yes_option
@shared_options
def command(
    cluster: str | None,
    min_workers: int | None,
    max_workers: int | None,
    no_restart: bool,
    restart_only: bool,
    force: bool,
    yes: bool,
    json: bool,
    verbose: bool,
    cluster_name: str | None,
) -> None:
    """Bring a cluster up, or to what its file says now.

    CLUSTER is a YAML file, an http(s) address of one, or the name of a cluster that is up.
    Without it, a Ray cluster of a head and two workers starts on this machine.
    """
    from shoal import spec
    from shoal.ops import target
    from shoal.ops.context import Context
    from shoal.ops.plan import RestartPolicy
    from shoal.ops.up import UpOptions, UpResult, up

    if no_restart and restart_only:
        raise click.UsageError("Use --no-restart or --restart-only, not both.")
    restart: RestartPolicy = "as needed"
    if no_restart or restart_only:
        restart = "never" if no_restart else "only"
    options = UpOptions(restart=restart, force=force)
    overrides = spec.Overrides(
        cluster_name=cluster_name, min_workers=min_workers, max_workers=max_workers
    )

    async def operation(ctx: Context) -> UpResult:
        if cluster is None:
            wanted = spec.default_embedded(overrides).spec
        else:
            wanted = await target.resolve(ctx, cluster, overrides)
        return await up(ctx, wanted, options)

    if run(operation, json=json, verbose=verbose, yes=yes).plan is None:
        sys.exit(1)
