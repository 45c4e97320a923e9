"""`shoal plan`"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options, skip_checks_option
from shoal.cli.render.messages import lines
from shoal.cli.run import output_options, run
from shoal.core.events import Event, ImageChosen, PlanStep, PriceEstimated, Unchanged

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("plan")
@cluster_argument
@click.option("--min-workers", type=click.IntRange(min=0), help="Override the file's min_workers.")
@click.option("--max-workers", type=click.IntRange(min=0), help="Override the file's max_workers.")
@skip_checks_option
@cluster_ref_options
@output_options
def command(
    ref: ClusterRef,
    min_workers: int | None,
    max_workers: int | None,
    skip_checks: tuple[str, ...],
    json: bool,
    verbose: int,
) -> None:
    """Show what `shoal up` would do, and what the cluster would then cost per hour.

    Runs the same preflight checks as `up`. Nothing is created, changed or terminated.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.preview import show_plan

    overrides = replace(ref.overrides, min_workers=min_workers, max_workers=max_workers)

    result: list[Event] = []

    async def operation(ctx: Context) -> None:
        def emit(event: Event) -> None:
            is_result = isinstance(event, (PlanStep, ImageChosen, PriceEstimated, Unchanged))
            (result.append if is_result and not json else ctx.emit)(event)

        located = await cluster_lookup.locate_or_default(ctx, replace(ref, overrides=overrides))
        await show_plan(replace(ctx, emit=emit), located.spec, located.source_of, skip_checks)

    run(operation, json=json, verbose=verbose)
    for event in result:
        click.echo("\n".join(lines(event)))
