"""`shoal iam-policy`"""

from __future__ import annotations

import click


@click.command("iam-policy")
@click.option("--head", is_flag=True, help="Print the policy of a cluster's head instead.")
@click.option(
    "--boundary",
    is_flag=True,
    help="Print a permissions boundary for the roles that Shoal creates instead.",
)
@click.option(
    "--with-boundary",
    metavar="ARN",
    default="",
    help="Allow creating roles only with this permissions boundary.",
)
@click.option("--cluster-name", default="*", help="With --head: limit it to this cluster.")
@click.option(
    "--region",
    default="*",
    help="Use the AWS partition of this region (China, GovCloud); with --head, also limit it to "
    "this region.",
)
def command(head: bool, boundary: bool, with_boundary: str, cluster_name: str, region: str) -> None:
    """Print the IAM policy that your AWS user or role needs.

    With --head, print the policy that `shoal up` gives a cluster's head: it may launch, stop and
    terminate instances of its own cluster, and nothing else.

    Who may create roles may give them any permission. To prevent that, create a policy from
    --boundary, grant users what --with-boundary prints, and name the boundary in cluster files:
    provider: {permissions_boundary: ARN}
    """
    from shoal.providers.aws import iam_policies

    if sum([head, boundary, bool(with_boundary)]) > 1:
        raise click.UsageError("Use one of --head, --boundary and --with-boundary.")
    if head:
        document = iam_policies.head_policy(cluster_name, region)
    elif boundary:
        document = iam_policies.boundary_policy()
    else:
        document = iam_policies.caller_policy(with_boundary)
    click.echo(iam_policies.to_json(document, region))
