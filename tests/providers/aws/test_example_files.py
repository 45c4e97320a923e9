"""Cluster files of users come up, run a Ray program on every node, and go down completely.

A few are brought up in every run, most of them with a fake Ray. `SHOAL_EVERY_EXAMPLE=1` brings up
all of them with the real one, which takes minutes.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from shoal.cluster.observed_cluster import ObservedCluster
from shoal.core.clock import SystemClock
from shoal.ops.up_plan import plan_up
from shoal.providers import provider_for
from shoal.spec import load
from tests.providers.aws.aws_bed import Bed, events_of
from tests.providers.aws.example_files import BRANCH, EXAMPLES, REPOSITORY, Example
from tests.providers.aws.provider_account import Account
from tests.providers.local.ssh_bed import ON_EVERY_NODE
from tests.simcloud.cloud import SimCloud

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not EXAMPLES, reason="the example files are not available"),
]

EVERY = os.environ.get("SHOAL_EVERY_EXAMPLE") == "1"
WITH_RAY = ("example-subnets",)
WITHOUT_RAY = ("example-multi-node-type", "example-minimal")
WITH_GIT_BRANCH = "seed-2"
# Longer than any of them takes on a busy computer.
UP_SECONDS = 400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    """An account, and a laptop with a program and a git repository on it."""
    async with SimCloud() as cloud:
        laptop = await cloud.laptop()
        git = "git -c user.name=me -c user.email=me@example.com"
        prepare = (
            f"mkdir {REPOSITORY} && cd {REPOSITORY} && git init -q -b {BRANCH} && "
            f"{git} commit -q --allow-empty -m first && cat > ~/everywhere.py"
        )
        (await laptop.run(prepare, stdin=ON_EVERY_NODE)).require("preparing the laptop")
        yield Bed(cloud, laptop)


def select(name: str, few: tuple[str, ...]) -> Example:
    """The example, unless it is skipped in this run."""
    example = EXAMPLES[name]
    if example.skip:
        pytest.skip(example.skip)
    if not EVERY and name not in few:
        pytest.skip("only with SHOAL_EVERY_EXAMPLE=1")
    return example


async def bring_up(bed: Bed, example: Example, *, real_ray: bool) -> int:
    """Run `shoal up` of an example; returns the number of nodes."""
    subnets = [subnet["SubnetId"] for subnet in bed.ec2.describe_subnets()["Subnets"]]
    text = json.dumps(example.adapted(subnets, real_ray=real_ray))
    (await bed.laptop.run("cat > c.yaml", stdin=text)).require("writing the cluster file")
    done = await bed.shoal("up c.yaml --yes --json", timeout=UP_SECONDS)
    assert done.code == 0, done.stdout + done.stderr
    return int(events_of(done)[-1]["nodes"])


@pytest.mark.ray
@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_program_runs_on_every_node(bed: Bed, name: str) -> None:
    example = select(name, WITH_RAY)
    nodes = await bring_up(bed, example, real_ray=True)
    addresses = sorted(bed.cloud.ec2.host(id).address for id in bed.running())
    assert len(addresses) == nodes
    await bed.shoal("rsync-up c.yaml everywhere.py everywhere.py")
    done = await bed.shoal("exec c.yaml 'python everywhere.py'")
    assert done.code == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == str(addresses)
    await bed.down(home="~/another-laptop")


@pytest.mark.parametrize("name", WITHOUT_RAY)
async def test_an_example_comes_up_and_goes_down_completely(bed: Bed, name: str) -> None:
    assert await bring_up(bed, select(name, WITHOUT_RAY), real_ray=False) >= 1
    await bed.down(home="~/another-laptop")


async def test_the_git_branch_of_a_file_is_checked_out(bed: Bed) -> None:
    await bring_up(bed, select(WITH_GIT_BRANCH, (WITH_GIT_BRANCH,)), real_ray=False)
    done = await bed.shoal("exec c.yaml 'git -C project log -1 --format=%s'")
    assert done.stdout.strip() == "first", done.stderr
    await bed.down()


@pytest.mark.asyncio(loop_scope="function")
async def test_the_instances_of_a_file_with_containers_are_launched(account: Account) -> None:
    for example in (e for e in EXAMPLES.values() if e.name.startswith("example")):
        path = account.directory / "c.yaml"
        path.write_text(json.dumps(example.adapted(["", ""], real_ray=False)))
        if not example.skip:
            continue
        spec = load(str(path)).launchable()
        provider = provider_for(spec, account.directory / "home", SystemClock())
        launches = plan_up(spec, ObservedCluster()).launches
        created = await provider.launch(spec, launches)
        assert len(created) == sum(launch.count for launch in launches), example.name
        await provider.terminate(spec, created)
        await provider.release(spec)
        await account.cloud.assert_nothing_left()
