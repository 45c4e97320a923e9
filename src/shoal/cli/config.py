"""`shoal config`"""

from __future__ import annotations

import json as jsonlib

import click

from shoal.cli.run import output_options, run

# Longer lines do not widen the column for all others.
_MAX_COLUMN_WIDTH = 64


@click.command("config")
@click.argument("cluster", required=False)
@click.option("--min-workers", type=int, help="Override the file's min_workers.")
@click.option("--max-workers", type=int, help="Override the file's max_workers.")
@click.option("-n", "--cluster-name", metavar="NAME", help="Override the file's cluster_name.")
@output_options
def command(
    cluster: str | None,
    min_workers: int | None,
    max_workers: int | None,
    cluster_name: str | None,
    json: bool,
    verbose: int,
) -> None:
    """Show how Shoal reads a cluster file.

    CLUSTER is a YAML file or the http(s) URL of one. The output is a cluster file with all defaults
    and current keys. A comment shows the origin of each value: a line of the file, a legacy key,
    the command line, or a default.
    """
    from shoal import spec
    from shoal.core.events import Warned
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.spec import config_report

    overrides = spec.Overrides(
        cluster_name=cluster_name, min_workers=min_workers, max_workers=max_workers
    )

    async def operation(ctx: Context) -> spec.LoadedSpec:
        if cluster is None:
            loaded = spec.default_embedded(overrides)
        else:
            loaded = cluster_lookup.load_file(cluster, overrides)
        for problem in (*loaded.warnings, *loaded.unsupported):
            ctx.emit(Warned(str(problem)))
        return loaded

    loaded = run(operation, json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(jsonlib.dumps(config_report.report(loaded)))
        return
    rows = list(config_report.outline(loaded))
    width = max(len(text) for text, _ in rows if len(text) <= _MAX_COLUMN_WIDTH)
    for text, origin in rows:
        comment = click.style(f"# {origin}", dim=True)
        click.echo(f"{text:<{width}}  {comment}" if origin else text)
