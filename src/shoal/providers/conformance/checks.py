"""The checks: each is a promise of `shoal.providers.protocol` that callers rely on. They launch
real instances, and terminate them."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    ProviderError,
    QuotaError,
    ShoalError,
    TransientError,
)
from shoal.core.polling import PollUntilDeadline
from shoal.providers.conformance.environment import Environment, Refusal
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.providers.protocol import Provider
from shoal.spec.cluster_spec import ClusterSpec

Outcome = Literal["passed", "failed", "skipped"]

# How long a listing may take to show a new instance.
_LISTED_SECONDS = 60.0
_CHECK_SECONDS = 900.0
_LAG_SECONDS = 5.0
# Instances that are launched by mistake are looked for after this time.
_SETTLE_SECONDS = 1.0

_EXPECTED_ERRORS: dict[Refusal, type[ShoalError]] = {
    "capacity": CapacityError,
    "quota": QuotaError,
    "auth": AuthError,
    "config": ConfigError,
    "transient": TransientError,
}


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check; `detail` says why it failed or was skipped."""

    name: str
    outcome: Outcome
    detail: str = ""


class _Skipped(Exception):
    """The check does not apply."""


def _require(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(what)


class Suite:
    """The checks of one provider. `make` returns a new provider, as a new process on the same
    machine would have. `spec` must have a worker type with `max_workers` of 2 or more."""

    def __init__(
        self,
        make: Callable[[], Provider],
        spec: ClusterSpec,
        clock: Clock,
        environment: Environment | None = None,
    ) -> None:
        self._make = make
        self._spec = spec
        self._clock = clock
        self._environment = environment or Environment()
        self._worker_type = next(
            (name for name, t in spec.node_types.items() if t.max_workers >= 2), ""
        )

    @property
    def checks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """All checks, by the promise that each is about."""
        refusals: dict[str, Callable[[], Awaitable[None]]] = {
            f"a launch that is refused for {kind} raises {error.__name__}": functools.partial(
                self._refused, kind, error
            )
            for kind, error in _EXPECTED_ERRORS.items()
        }
        return {
            "preflight creates nothing": self._preflight,
            "a head and workers are launched and listed": self._launch,
            "another process lists the same instances, by cluster and by role": self._tags,
            "the same token launches nothing more": self._repeat,
            "the same token launches nothing more while the listing lags": self._lag,
            "two launches with the same token at once launch once": self._concurrent,
            "of more workers than there is capacity for, some are returned": self._partial_fill,
            "a stopped instance is listed as stopped, and starts again": self._stop,
            "a terminated instance is gone, and can be terminated again": self._terminate,
            **refusals,
            "nothing is left at the end": self._release,
        }

    async def run(self, report: Callable[[CheckResult], None]) -> list[CheckResult]:
        """Run every check, and terminate what is left after each."""
        if not self._worker_type:
            raise ConfigError(
                "the cluster file has no worker type that the suite can use",
                why="the suite launches two workers of one type",
                fix="set max_workers of a node type to 2 or more",
            )
        results = []
        for name, check in self.checks.items():
            result = await self._run_one(name, check)
            report(result)
            results.append(result)
        return results

    async def _run_one(self, name: str, check: Callable[[], Awaitable[None]]) -> CheckResult:
        result = CheckResult(name, "passed")
        try:
            await asyncio.wait_for(check(), _CHECK_SECONDS)
        except _Skipped as reason:
            result = CheckResult(name, "skipped", str(reason))
        except Exception as error:  # whatever the provider under test raises
            result = CheckResult(name, "failed", _describe(error))
        try:
            await self._environment.reset()
            await asyncio.wait_for(self._terminate_all(), _CHECK_SECONDS)
        except Exception as error:
            details = [d for d in (result.detail, f"could not clean up: {_describe(error)}") if d]
            return CheckResult(name, "failed", "; ".join(details))
        return result

    # the checks

    async def _preflight(self) -> None:
        provider = self._make()
        findings = await provider.preflight(self._spec)
        errors = [f.what for f in findings if f.severity == "error"]
        _require(not errors, f"the file does not pass preflight: {'; '.join(errors)}")
        _require(not await self._instances(provider), "preflight has created instances")

    async def _launch(self) -> None:
        provider = self._make()
        head = LaunchRequest(self._spec.head_node_type, "head", 1, _token())
        launched = list(await provider.launch(self._spec, [head, self._workers(2)]))
        await self._environment.join(provider, self._spec, launched)
        roles = sorted(i.role for i in launched)
        _require(roles == ["head", "worker", "worker"], f"launch returned {roles}")
        _require(len({i.id for i in launched}) == 3, "two instances have the same id")
        _require(len({i.name for i in launched}) == 3, "two instances have the same name")
        for instance in launched:
            _require(instance.address, f"{instance.name} has no address when launch returns")
            _require(instance.cluster == self._spec.cluster_name, "an instance of another cluster")
        await self._wait_until_listed(provider, launched)

    async def _tags(self) -> None:
        async with self._launched(2) as (provider, launched):
            await self._wait_until_listed(provider, launched)
            for other in (provider, self._make()):
                await self._require_same(other, launched)

    async def _require_same(self, provider: Provider, launched: Sequence[Instance]) -> None:
        listed = {i.id: i for i in await self._instances(provider)}
        for i in launched:
            _require(i.id in listed, f"{i.name} is not listed by another process")
            found = listed[i.id]
            _require(found.node_type == i.node_type, f"{i.name} is listed as {found.node_type}")
            same = (found.role, found.name) == (i.role, i.name)
            _require(same, f"{i.role} {i.name} is listed as {found.role} {found.name}")
        heads = await provider.list_instances(self._spec.cluster_name, "head")
        _require(all(i.role == "head" for i in heads), "workers are listed as heads")
        if provider.capabilities.hosts is None:
            elsewhere = await provider.list_instances(f"{self._spec.cluster_name}-other")
            _require(not elsewhere, "instances of another cluster are listed")

    async def _repeat(self) -> None:
        self._skip_for_existing_hosts()
        provider, request = self._make(), self._workers(2)
        first = await provider.launch(self._spec, [request])
        for again in (provider, self._make()):  # what a killed process began, another repeats
            second = await again.launch(self._spec, [request])
            _require(
                {i.id for i in second} == {i.id for i in first},
                f"a repeated launch returned {_names(second)} instead of {_names(first)}",
            )
        await self._require_workers(provider, 2)

    async def _lag(self) -> None:
        if not await self._environment.delay_listings(_LAG_SECONDS):
            raise _Skipped("the environment cannot delay listings")
        await self._repeat()

    async def _concurrent(self) -> None:
        self._skip_for_existing_hosts()
        provider, request = self._make(), self._workers(2)
        first, second = await run_all(
            provider.launch(self._spec, [request]) for provider in (provider, provider)
        )
        _require({i.id for i in first} == {i.id for i in second}, "each launched its own")
        await self._require_workers(provider, 2)

    async def _partial_fill(self) -> None:
        provider = self._make()
        if not await self._environment.limit_capacity(1):
            raise _Skipped("the environment cannot limit the capacity")
        launched = await provider.launch(self._spec, [self._workers(2)])
        _require(len(launched) == 1, f"{len(launched)} were returned; there was capacity for 1")

    async def _stop(self) -> None:
        if not self._make().capabilities.stops_instances:
            raise _Skipped("its instances cannot be stopped")
        async with self._launched(1) as (provider, launched):
            await self._wait_until_listed(provider, launched)
            await provider.stop(self._spec, launched)
            listed = {i.id: i.state for i in await self._instances(provider)}
            states = [listed.get(i.id) for i in launched]
            _require(set(states) <= {State.STOPPED, None}, f"after stop it is {states[0]}")
            if None in states:
                return  # it could not be stopped, and was terminated
            started = await provider.start(self._spec, launched)
            _require({i.id for i in started} == {i.id for i in launched}, "start lost instances")
            _require(all(i.address for i in started), "a started instance has no address")

    async def _terminate(self) -> None:
        async with self._launched(2) as (provider, launched):
            await self._wait_until_listed(provider, launched)
            gone, other = launched
            await self._environment.leave(provider, self._spec, [gone])
            await provider.terminate(self._spec, [gone])
            listed = {i.id for i in await self._instances(provider)}
            _require(gone.id not in listed, f"{gone.name} is still listed")
            _require(other.id in listed, f"{other.name} is gone too")
            await provider.terminate(self._spec, [gone])

    async def _refused(self, kind: Refusal, expected: type[ShoalError]) -> None:
        provider = self._make()
        if not await self._environment.refuse_launches(kind):
            raise _Skipped(f"the environment cannot make the cloud refuse for {kind}")
        try:
            launched = await provider.launch(self._spec, [self._workers(1)])
        except expected:
            return
        except ProviderError as error:
            raise AssertionError(f"it raises {type(error).__name__}: {error}") from None
        # Workers may be fewer than requested; then an event has the reason.
        is_short = kind in ("capacity", "quota") and not launched
        _require(is_short, f"launch returned {_names(launched)}")

    async def _release(self) -> None:
        provider = self._make()
        await provider.release(self._spec)
        left = await self._instances(provider)
        _require(not left, f"still there: {_names(left)}")

    # helpers

    def _workers(self, count: int) -> LaunchRequest:
        return LaunchRequest(self._worker_type, "worker", count, _token())

    @asynccontextmanager
    async def _launched(self, count: int) -> AsyncIterator[tuple[Provider, list[Instance]]]:
        provider = self._make()
        launched = list(await provider.launch(self._spec, [self._workers(count)]))
        _require(len(launched) == count, f"launched {len(launched)} of {count} workers")
        await self._environment.join(provider, self._spec, launched)
        yield provider, launched

    def _skip_for_existing_hosts(self) -> None:
        if self._make().capabilities.hosts is not None:
            raise _Skipped("hosts that exist are not launched; the claim on a host is its token")

    async def _instances(self, provider: Provider) -> list[Instance]:
        listed = await provider.list_instances(self._spec.cluster_name)
        ended = (State.TERMINATED, State.TERMINATING, State.UNREACHABLE)
        return [i for i in listed if i.state not in ended]

    async def _wait_until_listed(self, provider: Provider, instances: Sequence[Instance]) -> None:
        wanted = {i.id for i in instances}
        async for _ in PollUntilDeadline(self._clock, _LISTED_SECONDS, 0.5):
            if wanted <= {i.id for i in await self._instances(provider)}:
                return
        raise AssertionError(f"not listed within {_LISTED_SECONDS:.0f} s: {_names(instances)}")

    async def _require_workers(self, provider: Provider, count: int) -> None:
        """Wait until so many workers are listed, and a little longer for any more."""
        async for _ in PollUntilDeadline(self._clock, _LISTED_SECONDS, 0.5):
            if len(await self._instances(provider)) >= count:
                break
        await self._clock.sleep(_SETTLE_SECONDS)
        listed = await self._instances(provider)
        _require(len(listed) == count, f"{len(listed)} workers exist instead of {count}")

    async def _terminate_all(self) -> None:
        provider = self._make()
        if instances := await self._instances(provider):
            await self._environment.leave(provider, self._spec, instances)
            await provider.terminate(self._spec, instances)


def _token() -> str:
    return secrets.token_hex(8)


def _names(instances: Sequence[Instance]) -> str:
    return ", ".join(i.name for i in instances) or "nothing"


def _describe(error: Exception) -> str:
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return f"it did not end within {_CHECK_SECONDS:.0f} s"
    if isinstance(error, (AssertionError, ShoalError)):
        return str(error)
    return f"{type(error).__name__}: {error}"
