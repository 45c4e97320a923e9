"""The conformance suite on Google Cloud, against a project with faults."""

from __future__ import annotations

import pytest

from shoal.core.clock import SystemClock
from shoal.providers.conformance.checks import Suite
from shoal.providers.conformance.environment import Environment, Refusal
from tests.providers.gcp.gcp_bed import Account

pytestmark = pytest.mark.simcloud


class GcpEnvironment(Environment):
    """The faults of the simulated project."""

    def __init__(self, account: Account) -> None:
        self._faults = account.cloud.faults

    async def refuse_launches(self, kind: Refusal) -> bool:
        if kind == "capacity":
            self._faults.refuse_capacity()
        return kind == "capacity"

    async def delay_listings(self, seconds: float) -> bool:
        self._faults.lag_listings(2)
        return True

    async def reset(self) -> None:
        self._faults.lift_all()


async def test_gcp_conforms(account: Account) -> None:
    suite = Suite(account.provider, account.spec, SystemClock(), GcpEnvironment(account))
    results = await suite.run(print)
    assert {r.name: r.detail for r in results if r.outcome == "failed"} == {}
    await account.cloud.assert_nothing_left()
