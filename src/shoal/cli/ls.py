"""`shoal ls`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict

import click

from shoal.cli.formatting import columns, duration
from shoal.cli.run import output_options, run
from shoal.core.money import per_hour


@click.command("ls")
@click.option("--all-regions", is_flag=True, help="List all clusters of your accounts.")
@output_options
def command(all_regions: bool, json: bool, verbose: int) -> None:
    """List the clusters that were brought up from this machine.

    With --all-regions, list all clusters of your AWS account and Google Cloud projects in all
    regions, launched by Shoal or by Ray.
    """
    from shoal.ops.ls import ls

    if all_regions:
        _all_regions(json=json, verbose=verbose)
        return
    clusters = run(ls, json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(jsonlib.dumps([asdict(cluster) for cluster in clusters]))
    elif not clusters:
        click.echo("no clusters")
    else:
        rows = [
            (
                click.style(cluster.cluster, bold=True),
                cluster.provider,
                "unknown" if cluster.problem else str(cluster.nodes or "not up"),
                "" if cluster.age_s is None else duration(cluster.age_s),
                "" if cluster.problem else price(cluster.price_per_hour, complete=cluster.complete),
                cluster.hint or click.style(cluster.controller, fg="red"),
            )
            for cluster in clusters
        ]
        for line in columns(("cluster", "provider", "nodes", "age", "", ""), rows):
            click.echo(line)


def _all_regions(*, json: bool, verbose: int) -> None:
    from shoal.ops.cloud_account import list_clusters

    clusters = run(list_clusters, json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(jsonlib.dumps([asdict(cluster) for cluster in clusters]))
        return
    if not clusters:
        click.echo("no clusters")
        return
    rows = [
        (
            click.style(cluster.cluster, bold=True),
            cluster.provider,
            cluster.made_by,
            str(cluster.nodes),
            cluster.state,
            "" if cluster.age_s is None else duration(cluster.age_s),
            price(cluster.price_per_hour, complete=cluster.complete),
        )
        for cluster in clusters
    ]
    for line in columns(("cluster", "where", "by", "nodes", "state", "age", ""), rows):
        click.echo(line)
    total = sum(cluster.price_per_hour for cluster in clusters)
    at_least = "" if all(cluster.complete for cluster in clusters) else "at least "
    click.echo(f"total: {at_least}{per_hour(total)}")


def price(dollars: float, *, complete: bool) -> str:
    """A price per hour, marked if it is incomplete; empty if it is zero."""
    if complete:
        return per_hour(dollars) if dollars else ""
    return f"at least {per_hour(dollars)}" if dollars else "price unknown"
