"""`shoal iam-policy`"""

from __future__ import annotations

import click


@click.command("iam-policy")
@click.option("--head", is_flag=True, help="The policy of a cluster's head instead.")
@click.option("--cluster-name", default="*", help="With --head: for this cluster only.")
@click.option(
    "--region",
    default="*",
    help="For the part of AWS that this region is in (China, GovCloud); with --head, for it alone.",
)
def command(head: bool, cluster_name: str, region: str) -> None:
    """Print what AWS must allow you, as a policy for IAM.

    With --head it is what `shoal up` allows a cluster's head, which launches and ends machines of
    its own cluster and can do nothing else.
    """
    from shoal.providers.aws import iam_policies

    document = iam_policies.for_head(cluster_name, region) if head else iam_policies.for_caller()
    click.echo(iam_policies.text(document, region))
