"""`shoal exec`"""

from __future__ import annotations

import sys

import click

from shoal.cli.session import run, shared_options


@click.command("exec")
@click.argument("words", nargs=-1, required=True, metavar="[CLUSTER] COMMAND")
@shared_options
def command(words: tuple[str, ...], json: bool, verbose: bool, cluster_name: str | None) -> None:
    """Run a command on a cluster's head, and exit with its exit code.

    In the command, `ray.init()` finds the cluster. COMMAND is one argument: quote it. CLUSTER is
    a YAML file or the name of a cluster; without it, the only one that is up. On an embedded
    cluster the command runs in the current directory.
    """
    from shoal import spec
    from shoal.ops import execute, target
    from shoal.ops.context import Context

    if len(words) > 2:
        raise click.UsageError(
            "Too many words. Quote the command: shoal exec CLUSTER 'python script.py --flag'"
        )
    if len(words) == 1 and target.looks_like_a_file(words[0]):
        raise click.UsageError(f"No command to run on {words[0]}.")
    cluster = words[0] if len(words) == 2 else None

    async def operation(ctx: Context) -> int:
        overrides = spec.Overrides(cluster_name=cluster_name)
        wanted = await target.resolve(ctx, cluster, overrides)
        if json:
            return (await execute.run(ctx, wanted, words[-1])).code
        return await execute.attach(ctx, wanted, words[-1], tty=sys.stdin.isatty())

    sys.exit(run(operation, json=json, verbose=verbose))
