"""How a machine is doing, in one round trip: its receipt, and whether its Ray runs.

Ray's own view is too slow for this (its GCS notices a death only after many seconds) and too
dear (asking it means importing Ray): a machine knows best which processes it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.bootstrap import receipt as receipts
from shoal.bootstrap.receipt import Receipt
from shoal.errors import SetupError
from shoal.providers.base import Instance
from shoal.remote.base import Runner, capture, quote

_SECONDS = 30.0

# Ray's daemons carry the instance's id in their environment, so that a cluster is not mistaken
# for another one on the same machine. $0 is that variable.
_OUR_PROCESSES = r"""
if [ -d /proc/self ]; then
  for file in $(grep -lszxF "$0" /proc/[0-9]*/environ); do
    cat "${file%environ}comm" 2>/dev/null
  done
else
  ps -axEww -o comm=,command= | grep -F " $0 " | awk '{print $1}' | sed 's|.*/||'
fi
true
"""


@dataclass(frozen=True)
class Vitals:
    """What a machine says of itself."""

    receipt: Receipt = field(default_factory=Receipt)
    ray_runs: bool = False


async def read(runner: Runner, instance: Instance) -> Vitals:
    """Ask one machine. Raises `ShoalError` when it cannot be asked."""
    mark = f"RAY_CLOUD_INSTANCE_ID={instance.id}"
    command = f"{receipts.READ}; {quote(['sh', '-c', _OUR_PROCESSES, mark])}"
    try:
        done, (first, *processes) = await capture(runner, command, timeout=_SECONDS)
    except (TimeoutError, ValueError):
        raise SetupError("the machine does not say how it is", node=instance.name) from None
    needed = {"raylet", "gcs_server"} if instance.role == "head" else {"raylet"}
    return Vitals(receipts.parse(first), done.ok and needed <= set(processes))
