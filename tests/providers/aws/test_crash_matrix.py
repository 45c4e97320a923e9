"""`up` and `down` killed at every AWS call. With baked images, the calls that make and delete these
are among them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from shoal.providers.aws import image_store
from tests.providers.aws.aws_bed import Bed, cluster_file
from tests.providers.crash_matrix import (
    FULL,
    SAMPLE,
    SEED,
    Crashes,
    check_killed_down,
    check_killed_up,
    points,
)
from tests.providers.forking_cli import ForkingCli
from tests.simcloud.faults import When

pytestmark = pytest.mark.simcloud


@pytest.fixture
async def crashes(bed: Bed) -> AsyncIterator[Crashes]:
    # Instances never boot, so that no run gets beyond the calls to AWS.
    bed.cloud.ec2.boot_delay(3600)
    cli = await ForkingCli.start(bed.laptop, "aws")
    yield Crashes(bed, cli)
    await cli.close()


async def test_down_on_another_laptop_cleans_up_after_an_up_killed_at_any_call(
    crashes: Crashes,
) -> None:
    await check_killed_up(crashes)


async def test_down_on_another_laptop_finishes_a_down_killed_at_any_call(crashes: Crashes) -> None:
    await check_killed_down(crashes)


async def check_only_named_images_stay(bed: Bed, crashes: Crashes, after: str) -> None:
    """Check that `down` leaves nothing but images that it names, and their snapshots."""
    output = await crashes.down(after)
    left = {thing.id for thing in await bed.cloud.ec2.leftovers()}
    images = bed.ec2.describe_images(Owners=["self"])["Images"]
    for image in images:
        if image["ImageId"] in output:
            left -= {image["ImageId"], *image_store.snapshot_ids(image)}
    assert not left, f"{after}: {left} in {output}"


@pytest.mark.long
async def test_down_leaves_only_the_images_that_it_names_after_any_kill(
    bed: Bed, crashes: Crashes
) -> None:
    """And with `--images` it leaves nothing."""
    shoal = {**cluster_file()["shoal"], "bake": True}
    await bed.write(shoal=shoal, setup_commands=["true"])
    launch_calls = await crashes.launch()
    await crashes.clean_up("a complete up")
    bed.cloud.ec2.boot_delay(0)
    up, down = "up c.yaml", "down c.yaml --images"
    kills: list[tuple[str, str, When]] = [
        (up, "CreateImage", "before"),
        (up, "CreateImage", "after"),
        (down, "DeregisterImage", "after"),
        (down, "DeleteSnapshot", "before"),
    ]
    for command, action, when in kills if FULL else random.Random(SEED).sample(kills, SAMPLE):
        if command == down:
            await bed.up()
        after = await crashes.kill_at_action(command, action, when)
        await check_only_named_images_stay(bed, crashes, after)
        await crashes.clean_up(after, "--images")
    if FULL:  # also at every call that follows the launch
        count = await crashes.bring_up()
        await check_only_named_images_stay(bed, crashes, "a complete up")
        await crashes.clean_up("a complete up", "--images")
        for nth, when in points(count, launch_calls + 1):
            after = await crashes.kill_at_call("up", nth, when, to_the_end=True)
            await check_only_named_images_stay(bed, crashes, after)
            await crashes.clean_up(after, "--images")
