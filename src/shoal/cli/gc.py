"""`shoal gc`"""

from __future__ import annotations

import sys

import click

from shoal.cli.run import output_options, run, yes_option


@click.command("gc")
@click.option("--images", is_flag=True, help="Also delete baked images of clusters that are down.")
@yes_option
@output_options
def command(images: bool, yes: bool, json: bool, verbose: int) -> None:
    """Delete what clusters left behind in your AWS account and Google Cloud projects.

    Searches all regions for workers without a head, and for security groups, firewall rules, key
    pairs, instance profiles, service accounts and disks of clusters without instances, and images
    that AWS could not complete. Asks before it deletes.
    """
    from shoal.ops.cloud_account import collect_garbage
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> bool:
        return await collect_garbage(ctx, images=images)

    if not run(operation, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
