"""`shoal submit`"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_ref_options, complete_cluster
from shoal.cli.exec_options import exec_options
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.execute import ExecOptions


@click.command("submit", context_settings={"ignore_unknown_options": True})
@click.argument(
    "positional",
    nargs=-1,
    required=True,
    metavar="[CLUSTER] SCRIPT [-- ARGUMENTS]",
    shell_complete=complete_cluster,
)
@click.option("--args", metavar="TEXT", help="The arguments as one string, as in Ray.")
@exec_options
@cluster_ref_options
@output_options
def command(
    positional: tuple[str, ...],
    args: str | None,
    ref: ClusterRef,
    options: ExecOptions,
    json: bool,
    verbose: int,
) -> None:  # fmt: skip
    """Copy a Python script to a cluster's head, run it there, and exit with its exit code.

    The script is copied to ~/SCRIPT; arguments after `--` are passed to it unchanged. CLUSTER can
    be omitted when SCRIPT ends in .py and only one cluster is up. On an embedded cluster, nothing
    is copied and the script runs in the current directory.

    \b
    shoal submit cluster.yaml train.py -- --epochs 3
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.submit import submit

    source, script, arguments = _split(positional, has_cluster=ref.source is not None)
    if source is not None:
        ref = replace(ref, source=source)
    if args is not None:
        if arguments:
            raise click.UsageError("Use --args or arguments after --, not both.")
        arguments = tuple(shlex.split(args))

    async def operation(ctx: Context) -> int:
        resolve = cluster_lookup.resolve_or_default if options.start else cluster_lookup.resolve
        return await submit(ctx, await resolve(ctx, ref), Path(script), arguments, options)

    sys.exit(run(operation, json=json, verbose=verbose, resumable=False))


def _split(
    positional: tuple[str, ...], *, has_cluster: bool
) -> tuple[str | None, str, tuple[str, ...]]:
    """The cluster, the script, and the script's arguments."""
    if has_cluster or positional[0].endswith(".py"):
        return None, positional[0], positional[1:]
    if len(positional) == 1:
        raise click.UsageError(f"No script to run on {positional[0]}.")
    return positional[0], positional[1], positional[2:]
