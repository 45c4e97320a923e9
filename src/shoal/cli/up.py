"""`shoal up`"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options, skip_checks_option
from shoal.cli.run import output_options, run, yes_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    from shoal.spec.durations import seconds

    try:
        return None if value is None else seconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, not {value}") from None


autostop_option = click.option(
    "--autostop",
    callback=_seconds,
    metavar="TIME",
    help="Terminate the cluster after this idle time: 30m, 2h, or off. Stays until set again.",
)


@click.command("up")
@cluster_argument
@click.option(
    "--min-workers",
    type=click.IntRange(min=0),
    help="Override the file's min_workers, also in later commands.",
)
@click.option(
    "--max-workers", type=click.IntRange(min=0),
    help="Override the file's max_workers, also in later commands.",
)  # fmt: skip
@autostop_option
@click.option("--no-restart", is_flag=True, help="Apply changes without restarting Ray.")
@click.option("--restart-only", is_flag=True, help="Only restart Ray; skip the setup.")
@skip_checks_option
@click.option("--force", is_flag=True, help="Use machines that another cluster has claimed.")
@click.option(
    "--redirect-command-output",
    "redirect",
    is_flag=True,
    help="Write node output to one file per node instead of the terminal.",
)
@click.option(
    "--use-login-shells/--use-normal-shells",
    default=True,
    help="Accepted for compatibility with Ray; commands always run in login shells.",
)
@click.option(
    "--no-config-cache",
    is_flag=True,
    help="Accepted for compatibility with Ray; there is no cache.",
)
@click.option(
    "--disable-usage-stats",
    is_flag=True,
    help="Accepted for compatibility with Ray; they are always off.",
)
@yes_option
@cluster_ref_options
@output_options
def command(
    ref: ClusterRef,
    min_workers: int | None,
    max_workers: int | None,
    autostop: float | None,
    no_restart: bool,
    restart_only: bool,
    skip_checks: tuple[str, ...],
    force: bool,
    redirect: bool,
    use_login_shells: bool,
    no_config_cache: bool,
    disable_usage_stats: bool,
    yes: bool,
    json: bool,
    verbose: int,
) -> None:  # fmt: skip
    """Create or update a cluster.

    Brings the cluster to what its file says. CLUSTER is a YAML file, the http(s) URL of one, or
    the name of a known cluster. Default: the only known cluster; if there is none, one with a head
    and two workers on this machine.

    \b
    shoal up cluster.yaml
    shoal up --nodes nodes.txt --key-file key.pem --username ubuntu
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.node_logs import with_log_files
    from shoal.ops.up import UpOptions, UpResult, up
    from shoal.ops.up_plan import RestartPolicy

    if no_restart and restart_only:
        raise click.UsageError("Use --no-restart or --restart-only, not both.")
    restart: RestartPolicy = "as needed"
    if no_restart or restart_only:
        restart = "never" if no_restart else "only"
    overrides = replace(
        ref.overrides, min_workers=min_workers, max_workers=max_workers, autostop=autostop
    )

    async def operation(ctx: Context) -> UpResult:
        located = await cluster_lookup.locate_or_default(ctx, replace(ref, overrides=overrides))
        cluster = located.spec
        options = UpOptions(restart, force, located.source_of, located.flags, skip_checks)
        ctx = with_log_files(ctx, cluster.cluster_name, only=redirect)
        return await up(ctx, cluster, options)

    if run(operation, json=json, verbose=verbose, yes=yes).plan is None:
        sys.exit(1)
