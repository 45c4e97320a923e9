"""Real Ray on simulated instances: a program runs on every node."""

from __future__ import annotations

import pytest

from tests.providers.aws.aws_bed import Bed, cluster_file
from tests.providers.local.ssh_bed import ON_EVERY_NODE, USE_OUR_RAY

pytestmark = [pytest.mark.simcloud, pytest.mark.ray]

RAY = "--disable-usage-stats --object-store-memory=100000000"


@pytest.mark.long
async def test_a_program_runs_on_every_node_of_a_cluster_on_aws(bed: Bed) -> None:
    types = cluster_file()["available_node_types"]
    # Workers without public addresses.
    types["worker"]["node_config"]["NetworkInterfaces"] = [{"AssociatePublicIpAddress": False}]
    await bed.write(
        available_node_types=types,
        setup_commands=[USE_OUR_RAY],
        file_mounts={"~/code": "code"},
        head_start_ray_commands=[
            "ray stop",
            f"ulimit -n 65536; ray start --head --port=6379 {RAY} "
            "--autoscaling-config=~/ray_bootstrap_config.yaml --dashboard-host=0.0.0.0",
        ],
        worker_start_ray_commands=["ray stop", f"ray start --address=$RAY_HEAD_IP:6379 {RAY}"],
    )
    await bed.laptop.run("mkdir code; cat > code/where.py", stdin=ON_EVERY_NODE)
    events = await bed.up(timeout=300)
    assert events[-1]["nodes"] == 3
    done = await bed.shoal("exec c.yaml 'python code/where.py'")
    assert done.code == 0, done.stderr
    addresses = sorted(bed.cloud.ec2.host(id).address for id in bed.running())
    assert done.stdout.strip() == str(addresses)
    await bed.down(home="~/another-laptop")
