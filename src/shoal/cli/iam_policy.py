"""`shoal iam-policy`"""

from __future__ import annotations

import click


@click.command("iam-policy")
@click.option(
    "--cloud",
    type=click.Choice(["aws", "gcp"]),
    default="aws",
    show_default=True,
    help="For which cloud; for gcp it is a custom role for gcloud iam roles create.",
)
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
def command(
    cloud: str, head: bool, boundary: bool, with_boundary: str, cluster_name: str, region: str
) -> None:
    """Print the permissions that you need: an IAM policy for AWS, or a custom role for GCP.

    With --head, print the policy that `shoal up` gives a cluster's head: it may launch, stop and
    terminate instances of its own cluster, and nothing else.

    Who may create roles may give them any permission. To prevent that, create a policy from
    --boundary, grant users what --with-boundary prints, and name the boundary in cluster files:
    provider: {permissions_boundary: ARN}
    """
    if cloud == "gcp":
        if boundary or with_boundary:
            raise click.UsageError("--boundary and --with-boundary are for AWS.")
        _print_gcp_role(head=head)
        return
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


def _print_gcp_role(*, head: bool) -> None:
    import json

    from shoal.providers.gcp import iam_permissions

    role = iam_permissions.cluster_role() if head else iam_permissions.caller_role()
    click.echo(json.dumps(role, indent=2))
