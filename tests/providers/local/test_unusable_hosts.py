"""Hosts that a cluster cannot use: `plan` says so instead of promising to use them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.providers.local.ssh_bed import Bed, actions

pytestmark = pytest.mark.simcloud

CLAIM = "echo 'other@192.0.2.99 worker-1 192.0.2.1' > /var/tmp/shoal-owner"


async def _plan(bed: Bed) -> list[dict[str, Any]]:
    done = await bed.shoal("plan c.yaml --json")
    assert done.code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_plan_names_the_worker_that_is_another_clusters(bed: Bed) -> None:
    await bed.read(bed.workers[1], CLAIM)
    events = await _plan(bed)
    assert [action for action, _ in actions(events)] == ["use", "use"]
    assert [subject.split()[0] for _, subject in actions(events)] == ["1", "1"]
    (warning,) = [e for e in events if e["event"] == "finding"]
    assert warning["what"].startswith("worker-2")
    assert "belongs to cluster other@192.0.2.99" in warning["why"]


async def test_plan_with_a_head_of_another_cluster_is_an_error(bed: Bed) -> None:
    await bed.read(bed.head, CLAIM)
    done = await bed.shoal("plan c.yaml")
    assert done.code != 0
    assert "+ use" not in done.stdout + done.stderr
    assert "belongs to cluster other@192.0.2.99" in done.stderr
    assert "--force" in done.stderr


async def test_plan_with_a_key_that_the_hosts_reject_is_an_error(bed: Bed) -> None:
    await bed.laptop.run("ssh-keygen -q -t ed25519 -N '' -f ~/wrong")
    await bed.write(auth={"ssh_user": "ubuntu", "ssh_private_key": "~/wrong"})
    done = await bed.shoal("plan c.yaml")
    assert done.code != 0
    assert "+ use" not in done.stdout + done.stderr
    assert "rejected the login" in done.stderr


async def test_plan_with_a_public_key_says_which_file_to_name(bed: Bed) -> None:
    auth = {"ssh_user": "ubuntu", "ssh_private_key": "~/.ssh/id_ed25519.pub"}
    await bed.write(auth=auth)
    done = await bed.shoal("plan c.yaml")
    assert done.code == 2
    assert "is a public key" in done.stderr
    assert "ssh_private_key: /home/me/.ssh/id_ed25519}" in done.stderr
    assert "chmod" not in done.stderr
