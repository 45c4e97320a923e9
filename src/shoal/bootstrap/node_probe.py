"""How a machine is doing, in one round trip: its receipt, its container, and whether its Ray runs.

Ray's own view is too slow for this (its GCS notices a death only after many seconds) and too
dear (asking it means importing Ray): a machine knows best which processes it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.bootstrap import applied_state as receipts
from shoal.bootstrap.applied_state import AppliedState
from shoal.core.errors import SetupError
from shoal.providers.model import Instance
from shoal.remote.container import CONTAINER_HASH_LABEL
from shoal.remote.runner import Runner, capture, quote
from shoal.spec.cluster_spec import ContainerSpec

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


# Prints whether a container runs and what it was made from, and then what is asked inside of it.
# $0 is the engine, $1 the container, $2 the question.
_IN_CONTAINER = rf"""
what='{{{{.State.Running}}}} {{{{index .Config.Labels "{CONTAINER_HASH_LABEL}"}}}}'
state=$("$0" container inspect -f "$what" "$1" 2>/dev/null)
echo "$state"
case $state in true*) "$0" exec "$1" sh -c "$2" "$3" ;; esac
true
"""


@dataclass(frozen=True)
class NodeProbe:
    """What a machine says of itself. Without a container, `container_runs` has no meaning."""

    applied_state: AppliedState = field(default_factory=AppliedState)
    ray_runs: bool = False
    container_runs: bool = False


async def read(
    runner: Runner,
    instance: Instance,
    container: ContainerSpec | None = None,
    places: Sequence[str] = (),
) -> NodeProbe:
    """Ask one machine, whose Ray is in this container if any, and which has something mounted at
    these places. Raises `ShoalError` when it cannot be asked."""
    mark = f"RAY_CLOUD_INSTANCE_ID={instance.id}"
    question = ["sh", "-c", _OUR_PROCESSES, mark]
    if container is not None:
        where = [container.engine, container.name]
        question = ["sh", "-c", _IN_CONTAINER, *where, _OUR_PROCESSES, mark]
    command = f"{receipts.read_command(places)}; {quote(question)}"
    try:
        done, (first, *rest) = await capture(
            runner, command, timeout=_SECONDS, skip_profile=container is None
        )
        state = rest.pop(0) if container is not None else ""
    except (TimeoutError, ValueError, IndexError):
        raise SetupError("the machine does not say how it is", node=instance.name) from None
    receipt = receipts.parse(first)
    runs, _, origin = state.partition(" ")
    if container is not None and origin != receipt.container:
        # Whatever was done went with the container that it was done in.
        receipt = AppliedState(volumes=receipt.volumes)
    needed = {"raylet", "gcs_server"} if instance.role == "head" else {"raylet"}
    return NodeProbe(receipt, done.ok and needed <= set(rest), runs == "true")


async def mark_stopped(
    runner: Runner, instance: Instance, container: ContainerSpec | None = None
) -> None:
    """Write on a machine that its Ray was stopped on purpose."""
    now = await read(runner, instance, container)
    await receipts.write(runner, replace(now.applied_state, start=receipts.STOPPED))
