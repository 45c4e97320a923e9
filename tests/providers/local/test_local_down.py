"""What `shoal down` keeps and what it leaves behind."""

from __future__ import annotations

import json

import pytest

from tests.providers.local.ssh_bed import Bed

pytestmark = pytest.mark.simcloud


async def test_down_can_keep_the_head_or_the_minimum_of_workers(bed: Bed) -> None:
    await bed.up()
    nothing = await bed.shoal("down mine --yes --workers-only --keep-min-workers")
    assert "no nodes to terminate" in nothing.stderr
    assert len(await node_names(bed)) == 3
    done = await bed.shoal("down mine --yes --workers-only")
    assert done.code == 0, done.stderr
    assert await node_names(bed) == ["head"]


async def test_down_leaves_no_ssh_host_name_behind(bed: Bed) -> None:
    await bed.up()
    assert (await bed.shoal("ssh-config mine --write")).code == 0
    assert (await bed.shoal("down mine --yes")).code == 0
    assert (await bed.laptop.run("ls ~/.ssh/shoal")).stdout == ""
    assert (await bed.laptop.run("ssh -G mine")).stdout.count("hostname mine") == 1


async def test_exec_runs_nothing_on_a_host_that_is_no_longer_the_clusters(bed: Bed) -> None:
    await bed.up()
    assert (await bed.shoal("down mine --yes")).code == 0
    done = await bed.shoal("exec c.yaml 'touch ran'")
    assert done.code == 3
    assert "cluster mine is not up" in done.stderr
    assert await bed.read(bed.head, "ls ran 2>/dev/null; true") == ""


async def node_names(bed: Bed) -> list[str]:
    status = await bed.shoal("status mine --json")
    return [node["name"] for node in json.loads(status.stdout)["nodes"]]
