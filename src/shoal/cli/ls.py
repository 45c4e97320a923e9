"""`shoal ls`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict

import click

from shoal.cli.columns import columns, duration
from shoal.cli.session import run


@click.command("ls")
@click.option("--json", "json", is_flag=True, help="Print for a program: JSON only.")
def command(json: bool) -> None:
    """Show every cluster known here."""
    from shoal.ops.status import ls

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
                str(entry.nodes) if entry.nodes else "not up",
                "" if entry.age_s is None else duration(entry.age_s),
                f"${entry.price_per_hour:.2f} an hour" if entry.price_per_hour else "",
            )
            for entry in found
        ]
        for line in columns(("cluster", "provider", "nodes", "age", ""), rows):
            click.echo(line)
