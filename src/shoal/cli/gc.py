"""`shoal gc`"""

from __future__ import annotations

import sys

import click

from shoal.cli.run import output_options, run, yes_option


@click.command("gc")
@yes_option
@output_options
def command(yes: bool, json: bool, verbose: bool) -> None:
    """Find what clusters left behind in your AWS account, and remove it after asking.

    In every region: workers whose head is gone, and security groups, key pairs, instance profiles
    and volumes of clusters that have no machine any more.
    """
    from shoal.ops.account import collect_garbage

    if not run(collect_garbage, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
