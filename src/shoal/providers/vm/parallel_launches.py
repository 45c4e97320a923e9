"""Launches several requests in parallel: what each of them launched is known before an error is
raised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.providers.model import LaunchRequest
from shoal.providers.vm.launch_fallback import LaunchOutcome, Record


async def launch_in_parallel(
    requests: Sequence[LaunchRequest], launch: Callable[[LaunchRequest], Awaitable[LaunchOutcome]]
) -> tuple[list[Record], list[ShoalError]]:
    """The records of all launched instances, and the errors. Missing workers are no error; without
    a head there is no cluster. The caller terminates the instances if there is an error."""
    outcomes: list[LaunchOutcome] = []
    errors: list[ShoalError] = []

    async def launch_one(request: LaunchRequest) -> None:
        try:
            outcome = await launch(request)
        except ShoalError as error:
            errors.append(error)
            return
        outcomes.append(outcome)
        if outcome.error is not None:
            errors.append(outcome.error)
        elif request.role == "head" and outcome.refusal is not None and outcome.missing:
            errors.append(outcome.refusal)

    await run_all(launch_one(request) for request in requests)
    return [record for outcome in outcomes for record in outcome.records], errors
