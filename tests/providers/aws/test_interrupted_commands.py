"""What a command that fails halfway reports, and what continues to cost money."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import AuthError
from shoal.ops.context import Context, always_yes
from shoal.ops.up import up
from tests.polling import until
from tests.providers.aws.aws_bed import SHOAL, Bed
from tests.providers.aws.provider_account import Account
from tests.simcloud.calls import ApiError
from tests.simcloud.faults import Fault

pytestmark = pytest.mark.simcloud


async def test_credentials_that_expire_during_up_name_what_still_runs(
    account: Account, tmp_path: Path
) -> None:
    calls = account.cloud.ledger.answered
    expired = ApiError("RequestExpired", "Request has expired.", 400)
    account.cloud.faults.add(Fault(lambda *_: calls()["RunInstances"] > 1, expired))
    ctx = Context(account.events.append, home=tmp_path / "shoal", confirm=always_yes)
    with pytest.raises(AuthError) as caught:
        await up(ctx, account.spec)
    assert "Request has expired" in caught.value.why
    assert "still running for $0." in caught.value.why
    assert "1 x head (m5.large)" in caught.value.why
    assert "2 x worker (m5.large)" in caught.value.why
    assert "or terminate what was launched: shoal down CLUSTER" in caught.value.fix
    assert len(account.cloud.ledger.running()) == 3
    account.cloud.faults.lift_all()
    await account.down()


async def test_instances_of_a_failed_up_terminate_themselves_after_a_lease(bed: Bed) -> None:
    """The laptop's idle SSH connections to them must not count as sessions."""
    shoal = {**bed.settings.get("shoal", {}), "lease": 8}
    await bed.write(setup_commands=["false"], shoal=shoal)
    done = await bed.shoal("up c.yaml --yes --min-workers 0")
    assert done.code == 6, done.stdout + done.stderr
    await until(lambda: not bed.running(), "all instances terminated themselves", timeout=90)


async def test_a_head_that_is_terminated_while_a_command_runs_is_named(bed: Bed) -> None:
    await bed.up("--min-workers 0")
    (head,) = bed.running()
    command = "exec c.yaml 'echo begun; exec sleep 600'"
    running = await bed.laptop.popen(f"SHOAL_HOME=~/.shoal {SHOAL} {command}")
    assert await running.stdout.readline() == b"begun\n"
    bed.ec2.terminate_instances(InstanceIds=[head])
    done = await running.finish("", 120)
    assert done.code == 6, done.stdout + done.stderr
    assert "the head was terminated while the command ran" in done.stderr
    assert "shoal up c.yaml" in done.stderr
    await bed.down()
