"""`shoal gc`"""

from __future__ import annotations

import sys

import click

from shoal.cli.run import output_options, run, yes_option


@click.command("gc")
@yes_option
@output_options
def command(yes: bool, json: bool, verbose: int) -> None:
    """Delete what clusters left behind in your AWS account.

    Searches all regions for workers without a head, and for security groups, key pairs, instance
    profiles and volumes of clusters without instances. Asks before it deletes.
    """
    from shoal.ops.cloud_account import collect_garbage

    if not run(collect_garbage, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
