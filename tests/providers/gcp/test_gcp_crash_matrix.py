"""`up` and `down` killed at every call to Google, by the same code as on AWS."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.providers.crash_matrix import Crashes, check_killed_down, check_killed_up
from tests.providers.forking_cli import ForkingCli
from tests.providers.gcp.gcp_bed import Bed

pytestmark = pytest.mark.simcloud


@pytest.fixture
async def crashes(bed: Bed) -> AsyncIterator[Crashes]:
    cli = await ForkingCli.start(bed.laptop, "gcp")
    yield Crashes(bed, cli)
    await cli.close()


async def test_down_on_another_laptop_cleans_up_after_an_up_killed_at_any_call(
    crashes: Crashes,
) -> None:
    await check_killed_up(crashes)


async def test_down_on_another_laptop_finishes_a_down_killed_at_any_call(crashes: Crashes) -> None:
    await check_killed_down(crashes)
