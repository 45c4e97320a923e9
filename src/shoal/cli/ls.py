"""`shoal ls`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict

import click

from shoal.cli.formatting import columns, duration
from shoal.cli.run import run


@click.command("ls")
@click.option("--all-regions", is_flag=True, help="Every cluster of your AWS account instead.")
@click.option("--json", "json", is_flag=True, help="Print for a program: JSON only.")
def command(all_regions: bool, json: bool) -> None:
    """Show every cluster known here.

    With --all-regions, show every cluster of your AWS account, Shoal's and Ray's, in all regions.
    """
    from shoal.ops.status import ls

    if all_regions:
        _all_regions(json=json)
        return
    found = run(ls, json=json, answers=True)
    if json:
        click.echo(jsonlib.dumps([asdict(entry) for entry in found]))
    elif not found:
        click.echo("no clusters")
    else:
        rows = [
            (
                click.style(entry.cluster, bold=True),
                entry.provider,
                "cannot be asked" if entry.problem else str(entry.nodes or "not up"),
                "" if entry.age_s is None else duration(entry.age_s),
                "" if entry.problem else price(entry.price_per_hour, complete=entry.complete),
            )
            for entry in found
        ]
        for line in columns(("cluster", "provider", "nodes", "age", ""), rows):
            click.echo(line)


def _all_regions(*, json: bool) -> None:
    from shoal.ops.account import everything

    found = run(everything, json=json, answers=True)
    if json:
        click.echo(jsonlib.dumps([asdict(entry) for entry in found]))
        return
    if not found:
        click.echo("no clusters")
        return
    rows = [
        (
            click.style(entry.cluster, bold=True),
            entry.provider,
            entry.made_by,
            str(entry.nodes),
            entry.state,
            "" if entry.age_s is None else duration(entry.age_s),
            price(entry.price_per_hour, complete=entry.complete),
        )
        for entry in found
    ]
    for line in columns(("cluster", "where", "by", "nodes", "state", "age", ""), rows):
        click.echo(line)
    least = "" if all(entry.complete for entry in found) else "at least "
    click.echo(f"in all {least}${sum(entry.price_per_hour for entry in found):.2f} an hour")


def price(per_hour: float, *, complete: bool) -> str:
    """What machines cost, and whether that is all of it; nothing for what costs nothing."""
    if complete:
        return f"${per_hour:.2f} an hour" if per_hour else ""
    return f"at least ${per_hour:.2f} an hour" if per_hour else "price unknown"
