"""Whether a person is there: whether what someone started by `exec`, `submit` or `attach`, on any
of the cluster's machines, still runs. It is known by a variable that its processes carry."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.ray_runtime.ray_start import IN_USE_VARIABLE
from shoal.remote.process import run_process
from shoal.remote.runner import Runner, quote

_SECONDS = 20.0
# $0 is the variable. Only the processes of one's own user can be asked.
_SESSIONS = r"""
if [ -d /proc/self ]; then
  grep -qszxF "$0" /proc/[0-9]*/environ
else
  ps -axEww -o command= | grep -qF " $0 "
fi
"""


async def is_here(gcs_address: str) -> bool:
    """Whether someone uses the cluster from this very machine."""
    try:
        return (await run_process(_question(gcs_address), timeout=_SECONDS)).ok
    except TimeoutError:
        return True  # nobody is thrown out because this machine is busy


async def is_at_any(runners: Sequence[Runner], gcs_address: str) -> bool:
    """Whether someone is on any of these machines. One that does not answer has nobody on it who
    could be thrown out."""

    async def one(runner: Runner) -> bool:
        try:
            await runner.connect(timeout=_SECONDS)
            return (await runner.run(quote(_question(gcs_address)), timeout=_SECONDS)).ok
        except (ShoalError, TimeoutError):
            return False

    return any(await run_all(one(runner) for runner in runners))


def _question(gcs_address: str) -> list[str]:
    return ["sh", "-c", _SESSIONS, f"{IN_USE_VARIABLE}={gcs_address}"]
