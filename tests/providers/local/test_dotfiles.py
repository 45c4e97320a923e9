"""Dotfiles that end, replace or move a shell. Users have them for their terminals."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from shoal.providers.host_claims import CLAIM_FILE
from tests.providers.local.ssh_bed import QUICK_START, Bed
from tests.simcloud.cloud import SimCloud

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop(), [await cloud.boot()])
        await bed.write(**QUICK_START, setup_commands=["pwd > ~/setup-directory"])
        await bed.read(bed.head, "cp ~/.bashrc ~/bashrc")
        yield bed


@pytest.mark.parametrize(
    ("dotfile", "said"),
    [
        ("cat ~/bashrc; echo exec tmux", "exec tmux"),
        ("cat ~/bashrc; echo exec fish", "exec fish"),
        ("cat ~/bashrc; echo '[ -t 0 ] || exit'", "exit"),
        ("echo 'set -e; set -u'; cat ~/bashrc", "unbound variable"),
    ],
)
async def test_a_dotfile_that_ends_shells_is_named_and_does_not_keep_down_from_working(
    bed: Bed, dotfile: str, said: str
) -> None:
    await bed.read(bed.head, f"{{ {dotfile}; }} > ~/.bashrc")
    done = await bed.shoal("up c.yaml --yes")
    assert done.code != 0
    assert "ends or replaces the shell" in done.stderr
    assert ".bashrc" in done.stderr
    assert said in done.stderr
    down = await bed.shoal("down c.yaml --yes")
    assert down.code == 0, down.stderr
    assert (await bed.head.run(f"test -e {CLAIM_FILE}")).code != 0


@pytest.mark.parametrize("line", ["exec fish", "exec tmux", "[ -t 0 ] || exit"])
async def test_a_dotfile_that_ends_every_shell_is_the_reason_that_is_given(
    bed: Bed, line: str
) -> None:
    await bed.read(bed.head, f"echo '{line}' > ~/.bashrc")
    done = await bed.shoal("up c.yaml --yes")
    assert done.code != 0
    assert "a dotfile of" in done.stdout + done.stderr
    assert "ssh_user" not in done.stderr


async def test_a_dotfile_may_change_the_directory(bed: Bed) -> None:
    await bed.read(bed.head, "{ cat ~/bashrc; echo cd /var; } > ~/.bashrc")
    await bed.up()
    assert await bed.read(bed.head, "cat ~/setup-directory") == "/var", "as with `ray up`"
    assert (await bed.shoal("exec c.yaml true")).code == 0
    assert (await bed.shoal("down c.yaml --yes")).code == 0
    assert (await bed.head.run(f"test -e {CLAIM_FILE}")).code != 0
