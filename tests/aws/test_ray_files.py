"""Ray's own cluster files for AWS, as they are but for the ids that a reader is to fill in: what
they ask for is launched, found and taken back."""

from __future__ import annotations

import boto3
import pytest

from shoal.clock import SystemClock
from shoal.ops.plan import Seen, plan_up
from shoal.providers import provider_for
from shoal.spec import load
from tests.aws.account import Account
from tests.spec.conftest import SHARED

FILES = sorted((SHARED / "ray-yaml" / "aws").glob("*.yaml"))

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.skipif(not FILES, reason="Ray's own cluster files are not beside the tree"),
]


async def test_every_file_of_rays_is_launched_and_taken_back(account: Account) -> None:
    options = account.cloud.ec2.client_options()
    subnets = boto3.client("ec2", **options).describe_subnets()["Subnets"]
    for file in FILES:
        text = file.read_text()
        for number, dummy in enumerate(("subnet-0000000", "subnet-fffffff")):
            text = text.replace(dummy, subnets[number]["SubnetId"])
        text = text.replace("p2.xlarge", "g4dn.xlarge")  # a type that is on its way out
        path = account.directory / "c.yaml"
        path.write_text(text)
        spec = load(str(path)).launchable()
        provider = provider_for(spec, account.directory / "home", SystemClock())
        launches = plan_up(spec, Seen()).launches
        created = await provider.create(spec, launches)
        assert len(created) == sum(launch.count for launch in launches), file.name
        found = await provider.find(spec.cluster_name)
        assert {i.id for i in found} == {i.id for i in created}, file.name
        await provider.terminate(spec, found)
        await provider.release(spec)
        await account.cloud.assert_nothing_left()
