"""The key pair that lets the launching user log in to a cluster's instances.

AWS gets the public key; the private key stays on this machine. Several laptops may launch into one
cluster, each with its own key pair, which the pair's name identifies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from shoal.providers.aws import tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.vm.ssh_keys import public_key
from shoal.spec.cluster_spec import AuthSpec

# The error code of RunInstances for a key pair that was created a moment ago.
NOT_PROPAGATED = "InvalidKeyPair.NotFound"


async def ensure_key_pair(
    aws: AwsClient, cluster: str, auth: AuthSpec, own_tags: Mapping[str, str]
) -> str:
    """Import the public key into EC2 if it is missing, and return the key pair's name."""
    public = await public_key(auth)
    algorithm, body = public.split()[:2]
    digest = hashlib.sha256(body.encode()).hexdigest()[:8]
    name = tags.resource_name(cluster, digest)
    await aws.call(
        "ec2",
        "import_key_pair",
        ignore_codes=("InvalidKeyPair.Duplicate",),
        KeyName=name,
        PublicKeyMaterial=f"{algorithm} {body}".encode(),
        TagSpecifications=tags.tag_specifications("key-pair", tags.cluster_tags(cluster, own_tags)),
    )
    return name


async def delete_key_pairs(aws: AwsClient, cluster: str) -> list[str]:
    """Delete the key pairs of all laptops that launched into the cluster. The private keys stay."""
    response = await aws.call("ec2", "describe_key_pairs", Filters=tags.cluster_filter(cluster))
    for pair in response["KeyPairs"]:
        await aws.call("ec2", "delete_key_pair", KeyName=pair["KeyName"])
    return [f"key pair {pair['KeyName']}" for pair in response["KeyPairs"]]
