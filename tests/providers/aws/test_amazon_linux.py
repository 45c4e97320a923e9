"""A cluster on Amazon Linux 2023: no apt, Python 3.9, another user, another root device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.aws.aws_bed import Bed, cluster_file
from tests.simcloud import amazon_linux

pytestmark = pytest.mark.simcloud


async def test_a_cluster_comes_up_on_amazon_linux(bed: Bed, tmp_path: Path) -> None:
    disk = amazon_linux.build(tmp_path / "disk")
    bed.cloud.ec2.instances.images.add(amazon_linux.IMAGE, disk, amazon_linux.SYSTEM)
    bed.cloud.ec2.instances.first_boot_s = 2.0
    types = cluster_file()["available_node_types"]
    for node_type in types.values():
        node_type["node_config"]["ImageId"] = amazon_linux.IMAGE
    await bed.write(
        auth={"ssh_user": amazon_linux.SYSTEM.user},
        available_node_types=types,
        # As this host sees itself.
        setup_commands=["! command -v apt-get", "grep -q Amazon /etc/os-release", "id -un > ~/me"],
    )
    events = await bed.up("--min-workers 1")
    assert [e for e in events if e["event"] == "warning"] == []
    for id in bed.running():
        host = bed.cloud.ec2.host(id)
        assert (await host.run("cat /home/ec2-user/me")).stdout == "ec2-user\n"
        version = await host.run("python3 -c 'import sys; print(sys.version_info[:2])'")
        assert version.stdout == "(3, 9)\n"
        # The lease, which terminates the instance in the end, runs with this Python.
        assert (await host.run("pgrep -f boot_watchdog || pgrep -f shoal")).code == 0
    volumes = bed.ec2.describe_volumes()["Volumes"]
    devices = {volume["Attachments"][0]["Device"] for volume in volumes}
    assert devices == {"/dev/xvda"}
    await bed.down()
