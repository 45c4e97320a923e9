"""Lookups that preflight makes for its checks. One that fails becomes a finding, and the others go
on."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Literal

from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.providers.model import Finding


class LookupRunner:
    """Makes lookups and adds their errors to `findings`. An error of the classes in `unknown`, such
    as a denied call, is only a warning: it does not mean that a launch would fail."""

    def __init__(self, findings: list[Finding], unknown: tuple[type[ShoalError], ...]) -> None:
        self._findings = findings
        self._unknown = unknown

    async def attempt(self, lookup: Awaitable[Any]) -> Any:
        """The result of a lookup, or None."""
        try:
            return await lookup
        except ShoalError as error:
            is_unknown = isinstance(error, self._unknown)
            severity: Literal["error", "warning"] = "warning" if is_unknown else "error"
            self._findings.append(
                Finding(severity, error.what, error.why, error.fix, check="lookup")
            )
            return None

    async def attempt_all(self, lookups: Mapping[str, Awaitable[Any]]) -> dict[str, Any]:
        """The results of lookups that run in parallel, by name."""
        results = await run_all(map(self.attempt, lookups.values()))
        return dict(zip(lookups, results, strict=True))
