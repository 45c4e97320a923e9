"""Instances whose head is gone, and what instances say of themselves."""

from __future__ import annotations

import boto3
import pytest

from shoal.providers.aws import tags
from tests.aws.bed import CLUSTER, Bed
from tests.waiting import until

pytestmark = pytest.mark.simcloud


def statuses(bed: Bed) -> set[str]:
    ec2 = boto3.client("ec2", **bed.cloud.ec2.client_options())
    pages = ec2.describe_instances(Filters=tags.of_cluster(CLUSTER))["Reservations"]
    records = [record for page in pages for record in page["Instances"]]
    return {tags.as_dict(record["Tags"])["ray-node-status"] for record in records}


async def test_instances_whose_head_is_gone_terminate_themselves(bed: Bed) -> None:
    await bed.write(shoal={"controller": False, "lease": "4s"})
    await bed.up()
    assert statuses(bed) == {"up-to-date"}
    assert bed.cloud.ledger.calls()["CreateTags"] <= 3, "said together"
    ec2 = bed.cloud.ec2
    (head,) = [id for id in bed.running() if await _is_head(bed, id)]
    await ec2.host(head).kill()
    await until(lambda: bed.running() == [head], "the workers have ended", timeout=60)
    await bed.down()


async def test_a_node_that_failed_says_so(bed: Bed) -> None:
    await bed.write(worker_setup_commands=["exit 3"])
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 4
    assert statuses(bed) == {"up-to-date", "update-failed"}
    await bed.down()


async def _is_head(bed: Bed, id: str) -> bool:
    return (await bed.cloud.ec2.host(id).run("pgrep -x gcs_server")).code == 0
