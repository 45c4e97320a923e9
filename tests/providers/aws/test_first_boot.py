"""The first boot of an instance goes on after sshd answers."""

from __future__ import annotations

import pytest

from tests.providers.aws.aws_bed import Bed

pytestmark = pytest.mark.simcloud


async def test_the_users_commands_wait_for_cloud_init_and_for_the_lock_of_apt(bed: Bed) -> None:
    # apt-get needs its locks also for a package that is installed already.
    await bed.write(
        initialization_commands=["test -e /run/boot-done", "sudo apt-get install -y coreutils"]
    )
    bed.cloud.ec2.instances.first_boot_s = 4.0
    await bed.up("--min-workers 0")
    await bed.down()
