"""The conformance suite: on the embedded provider, on the example of the documentation with every
fault that the suite knows, and on providers that break a promise."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.core.clock import SystemClock
from shoal.providers.conformance.__main__ import main
from shoal.providers.conformance.checks import CheckResult, Suite
from shoal.providers.conformance.environment import Environment, Refusal
from shoal.providers.embedded.embedded_provider import EmbeddedProvider
from shoal.providers.model import Instance, LaunchRequest
from shoal.providers.protocol import Provider
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec
from tests.providers.nimbus_api import NimbusApi
from tests.specs import cluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "providers"
REFUSALS: dict[Refusal, int] = {
    "capacity": 507,
    "quota": 402,
    "auth": 401,
    "config": 400,
    "transient": 429,
}


def failures(results: Sequence[CheckResult]) -> dict[str, str]:
    return {r.name: r.detail for r in results if r.outcome == "failed"}


async def check(suite: Suite) -> list[CheckResult]:
    return await suite.run(lambda result: None)


class NimbusEnvironment(Environment):
    """The faults of the made-up cloud."""

    def __init__(self, api: NimbusApi) -> None:
        self.api = api

    async def refuse_launches(self, kind: Refusal) -> bool:
        self.api.refusal = REFUSALS[kind]
        return True

    async def limit_capacity(self, count: int) -> bool:
        self.api.capacity = count
        return True

    async def delay_listings(self, seconds: float) -> bool:
        self.api.lag_s = min(seconds, 1.0)
        return True

    async def reset(self) -> None:
        self.api.heal()


@pytest.fixture
async def api() -> AsyncIterator[NimbusApi]:
    """The API, on instances that are only addresses."""
    numbers = itertools.count(1)

    async def boot(keys: list[str]) -> str:
        return f"192.0.2.{next(numbers)}"

    async def destroy(address: str) -> None:
        pass

    api = NimbusApi(boot, destroy)
    runner = await api.open("127.0.0.1", 0)
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield api
    await runner.cleanup()


@pytest.fixture
def nimbus_provider() -> Any:
    """The class of the example file."""
    found = importlib.util.spec_from_file_location("nimbus", EXAMPLES / "nimbus.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.NimbusProvider


def nimbus_spec(api: NimbusApi) -> ClusterSpec:
    spec = cluster(name="cloudy")
    types = {name: replace(t, node_config={"size": "small"}) for name, t in spec.node_types.items()}
    return replace(spec, provider=ProviderSpec("nimbus", {"url": api.url}), node_types=types)


async def test_the_embedded_provider_conforms(tmp_path: Path) -> None:
    suite = Suite(lambda: EmbeddedProvider(tmp_path / "e", SystemClock()), cluster(), SystemClock())
    results = await check(suite)
    assert failures(results) == {}
    assert sum(r.outcome == "passed" for r in results) >= 7


async def test_the_example_of_the_documentation_conforms_under_every_fault(
    api: NimbusApi, nimbus_provider: Any, tmp_path: Path
) -> None:
    spec = nimbus_spec(api)

    def make() -> Provider:
        provider: Provider = nimbus_provider(
            spec, tmp_path, SystemClock(), lambda _: None, on_head=False
        )
        return provider

    results = await check(Suite(make, spec, SystemClock(), NimbusEnvironment(api)))
    assert failures(results) == {}
    skipped = [r.name for r in results if r.outcome == "skipped"]
    assert skipped == ["a stopped instance is listed as stopped, and starts again"]
    assert api.records == {}


class ForgetsTokens(EmbeddedProvider):
    """Launches again whatever the token says."""

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        tokens = (f"{r.token}{next(_numbers)}" for r in requests)
        changed = [replace(r, token=token) for r, token in zip(requests, tokens, strict=True)]
        return await super().launch(spec, changed)


class TerminatesNothing(EmbeddedProvider):
    """Says that instances are gone, and is wrong at the first attempt."""

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        if len(instances) > 1:
            await super().terminate(spec, instances)


_numbers = itertools.count()


async def test_a_provider_that_ignores_tokens_fails(tmp_path: Path) -> None:
    suite = Suite(lambda: ForgetsTokens(tmp_path / "e", SystemClock()), cluster(), SystemClock())
    failed = failures(await check(suite))
    assert "a repeated launch returned" in failed["the same token launches nothing more"]
    assert "two launches with the same token at once launch once" in failed
    assert "a head and workers are launched and listed" not in failed


async def test_a_provider_that_terminates_nothing_fails(tmp_path: Path) -> None:
    provider = TerminatesNothing(tmp_path / "e", SystemClock())
    failed = failures(await check(Suite(lambda: provider, cluster(), SystemClock())))
    assert failed == {
        "a terminated instance is gone, and can be terminated again": "worker-1 is still listed"
    }


def test_the_command_prints_every_check_and_fails_if_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(
        "from shoal.providers.embedded.embedded_provider import EmbeddedProvider\n"
        "def Good(spec, home, clock, emit, *, on_head):\n"
        "    return EmbeddedProvider(home / 'e', clock)\n"
    )
    (tmp_path / "c.yaml").write_text(
        json.dumps({"cluster_name": "c", "provider": {"type": "mine"}, "max_workers": 2})
    )
    assert main(["mine:Good", "c.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "passed  the same token launches nothing more" in lines
    assert lines[-1].endswith("0 failed, 8 skipped")
    assert main(["mine:Missing", "c.yaml"]) == 2
    assert "name a class as package.module:Class" in capsys.readouterr().err
