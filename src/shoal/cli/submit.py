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
    "words",
    nargs=-1,
    required=True,
    metavar="[CLUSTER] SCRIPT [-- ARGUMENTS]",
    shell_complete=complete_cluster,
)
@click.option("--args", metavar="TEXT", help="As in Ray: the arguments as one text.")
@exec_options
@cluster_ref_options
@output_options
def command(
    words: tuple[str, ...],
    args: str | None,
    ref: ClusterRef,
    options: ExecOptions,
    json: bool,
    verbose: bool,
) -> None:  # fmt: skip
    """Copy a Python script to a cluster's head and run it there, with its exit code.

    The script becomes ~/SCRIPT on the head; what follows `--` reaches it as it is. CLUSTER may be
    left out when SCRIPT ends in .py and one cluster is up. On an embedded cluster nothing is
    copied, and the script runs in the current directory.

    \b
    shoal submit cluster.yaml train.py -- --epochs 3
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.submit import submit

    named, script, arguments = _split(words, has_cluster=ref.source is not None)
    if named is not None:
        ref = replace(ref, source=named)
    if args is not None:
        if arguments:
            raise click.UsageError("Use --args or arguments after --, not both.")
        arguments = tuple(shlex.split(args))

    async def operation(ctx: Context) -> int:
        resolve = cluster_lookup.resolve_or_default if options.start else cluster_lookup.resolve
        return await submit(ctx, await resolve(ctx, ref), Path(script), arguments, options)

    sys.exit(run(operation, json=json, verbose=verbose))


def _split(words: tuple[str, ...], *, has_cluster: bool) -> tuple[str | None, str, tuple[str, ...]]:
    """The cluster, the script, and its arguments."""
    if has_cluster or words[0].endswith(".py"):
        return None, words[0], words[1:]
    if len(words) == 1:
        raise click.UsageError(f"No script to run on {words[0]}.")
    return words[0], words[1], words[2:]
