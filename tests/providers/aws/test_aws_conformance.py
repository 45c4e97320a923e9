"""The conformance suite on AWS, against an account with faults."""

from __future__ import annotations

import pytest

from shoal.core.clock import SystemClock
from shoal.providers.conformance.checks import Suite
from shoal.providers.conformance.environment import Environment, Refusal
from tests.providers.aws.provider_account import Account
from tests.simcloud.calls import ApiError

pytestmark = pytest.mark.simcloud

CODES: dict[Refusal, str] = {
    "capacity": "InsufficientInstanceCapacity",
    "quota": "VcpuLimitExceeded",
    "auth": "UnauthorizedOperation",
    "config": "InvalidParameterValue",
}


class AwsEnvironment(Environment):
    """The faults of the simulated account."""

    def __init__(self, account: Account) -> None:
        self._faults = account.cloud.faults

    async def refuse_launches(self, kind: Refusal) -> bool:
        if kind == "transient":  # retried for minutes, which other tests do with their own clock
            return False
        self._faults.fail_call("RunInstances", error=ApiError(CODES[kind], "no", 400), times=99)
        return True

    async def limit_capacity(self, count: int) -> bool:
        self._faults.partial_launch(count)
        error = ApiError("InsufficientInstanceCapacity", "no", 500)
        self._faults.fail_call("RunInstances", nth=2, error=error, times=99)
        return True

    async def delay_listings(self, seconds: float) -> bool:
        self._faults.lag_listings(2)
        return True

    async def reset(self) -> None:
        self._faults.lift_all()


async def test_aws_conforms(account: Account) -> None:
    suite = Suite(account.provider, account.spec, SystemClock(), AwsEnvironment(account))
    results = await suite.run(print)
    assert {r.name: r.detail for r in results if r.outcome == "failed"} == {}
    assert [r.name for r in results if r.outcome == "skipped"] == [
        "a launch that is refused for transient raises TransientError"
    ]
    await account.down()
