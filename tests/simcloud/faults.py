"""Things that go wrong in a cloud's API, one call each.

A fault is asked twice about every API call: before the call takes effect, when it may refuse it
or change it, and after, when it may only lose the reply. `Faults` knows nothing of any one cloud.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from tests.simcloud.calls import ApiError, Call, Launch

When = Literal["before", "after"]


class Trouble(enum.Enum):
    """What can be the matter; each cloud has its own words for it."""

    NO_CAPACITY = "no capacity"
    THROTTLED = "throttled"
    INTERNAL = "internal"
    LOST = "lost"
    """The reply never arrives: the connection is closed instead."""


Verdict = ApiError | Trouble | None


class Fault:
    """One thing that goes wrong, until it is lifted or has happened often enough."""

    def __init__(
        self,
        strikes: Callable[[Call, Launch | None], bool],
        verdict: ApiError | Trouble,
        *,
        when: When = "before",
        skip: int = 0,
        times: int | None = None,
        do: Callable[[Call], object | Awaitable[object]] | None = None,
    ) -> None:
        self.when = when
        self.struck = 0
        self._strikes, self._verdict, self._do = strikes, verdict, do
        self._skip, self._times = skip, times
        self._lifted = False

    def lift(self) -> None:
        """Let the cloud work again."""
        self._lifted = True

    async def judge(self, call: Call, launch: Launch | None) -> Verdict:
        spent = self._times is not None and self.struck >= self._times
        if self._lifted or spent or not self._strikes(call, launch):
            return None
        if self._skip:
            self._skip -= 1
            return None
        self.struck += 1
        if self._do:
            done = self._do(call)
            if inspect.isawaitable(done):
                await done
        return self._verdict


class Faults:
    """The faults of one cloud. Each method returns a `Fault` that can be lifted."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()
        """Access keys that are no longer good."""
        self.listing_lag_s = 0.0
        self.latency_s = 0.0
        self.clock_ahead_s = 0.0
        """By how much the clock of the cloud is ahead of that of its callers."""
        self._faults: list[Fault] = []
        self._shortfalls: list[int] = []

    def add(self, fault: Fault) -> Fault:
        """Have a fault of one's own making."""
        self._faults.append(fault)
        return fault

    def refuse_capacity(
        self,
        *,
        type: str | None = None,
        zone: str | None = None,
        market: Literal["spot", "on-demand"] | None = None,
        times: int | None = None,
    ) -> Fault:
        """Refuse launches for want of machines: of a type, in a zone, in a market, or any."""

        def strikes(_: Call, launch: Launch | None) -> bool:
            return launch is not None and all(
                wanted in (None, offered)
                for wanted, offered in (
                    (type, launch.type),
                    (zone, launch.zone),
                    (market, launch.market),
                )
            )

        return self.add(Fault(strikes, Trouble.NO_CAPACITY, times=times))

    def throttle(self, action: str | None = None, *, times: int | None = None) -> Fault:
        """Answer calls (of one name, or all) with a request to slow down."""

        def strikes(call: Call, _: Launch | None) -> bool:
            return action in (None, call.action)

        return self.add(Fault(strikes, Trouble.THROTTLED, times=times))

    def fail_call(
        self,
        action: str,
        *,
        nth: int = 1,
        when: When = "before",
        error: ApiError | None = None,
        times: int = 1,
    ) -> Fault:
        """Fail the nth call of a name from now on.

        Before it takes effect, the caller gets `error` (an internal error, unless said
        otherwise). After it took effect, the caller gets `error`, or no reply at all.
        """
        usual = Trouble.INTERNAL if when == "before" else Trouble.LOST

        def strikes(call: Call, _: Launch | None) -> bool:
            return call.action == action

        return self.add(Fault(strikes, error or usual, when=when, skip=nth - 1, times=times))

    def at_call(
        self,
        nth: int,
        do: Callable[[Call], object | Awaitable[object]],
        *,
        when: When = "before",
    ) -> Fault:
        """Call `do` at the nth API call of any name from now on, and send no reply to it.

        `before`: the call has no effect. `after`: it had. Made for killing the caller there.
        """
        return self.add(
            Fault(lambda *_: True, Trouble.LOST, when=when, skip=nth - 1, times=1, do=do)
        )

    def partial_launch(self, count: int) -> None:
        """Give the next launch of more than `count` machines only `count`."""
        self._shortfalls.append(count)

    def lag_listings(self, seconds: float) -> None:
        """Keep instances out of listings until they are this old; 0 ends it."""
        self.listing_lag_s = seconds

    def slow_calls(self, seconds: float) -> None:
        """Have every call take this long; 0 ends it."""
        self.latency_s = seconds

    def revoke_credentials(self, *access_keys: str) -> None:
        """Refuse every later call signed with these keys."""
        self.revoked.update(access_keys)

    def lift_all(self) -> None:
        """End every fault of the API."""
        self._faults.clear()
        self._shortfalls.clear()
        self.revoked.clear()
        self.listing_lag_s = 0
        self.latency_s = 0
        self.clock_ahead_s = 0

    async def verdict(self, when: When, call: Call, launch: Launch | None) -> Verdict:
        """Return what the first fault that strikes has to say."""
        for fault in list(self._faults):
            if fault.when == when and (verdict := await fault.judge(call, launch)):
                return verdict
        return None

    def shorten(self, launch: Launch) -> Launch | Trouble:
        """Return the launch as far as there are machines for it."""
        for count in self._shortfalls:
            if launch.at_most > count:
                self._shortfalls.remove(count)
                if launch.at_least > count:
                    return Trouble.NO_CAPACITY
                return replace(launch, at_most=count)
        return launch
