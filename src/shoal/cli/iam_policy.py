"""`shoal iam-policy`"""

from __future__ import annotations

import click


@click.command("iam-policy")
@click.option("--head", is_flag=True, help="Print the policy of a cluster's head instead.")
@click.option("--cluster-name", default="*", help="With --head: limit it to this cluster.")
@click.option(
    "--region",
    default="*",
    help="Use the AWS partition of this region (China, GovCloud); with --head, also limit it to "
    "this region.",
)
def command(head: bool, cluster_name: str, region: str) -> None:
    """Print the IAM policy that your AWS user or role needs.

    With --head, print the policy that `shoal up` gives a cluster's head: it may launch, stop and
    terminate instances of its own cluster, and nothing else.
    """
    from shoal.providers.aws import iam_policies

    document = (
        iam_policies.head_policy(cluster_name, region) if head else iam_policies.caller_policy()
    )
    click.echo(iam_policies.to_json(document, region))
