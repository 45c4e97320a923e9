"""The default process group of a script, stable while the generations behind it change.

A script may call any collective of `torch.distributed`. Before its first batch a joiner's
collectives complete among the joiners, so the beginning of a script never waits for the workers
that train. Later they run in the current generation; when a peer is lost they return without an
error, and the step in which they ran is dropped.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shoal.train.worker.generation import Generation, PeerLostError
from shoal.train.worker.session import Session

_BACKEND = "shoal"


def init_process_group(session: Session) -> None:
    """Make an elastic group the default group of `torch.distributed`."""
    group = ElasticProcessGroup(session)

    def create(*_: Any) -> ElasticProcessGroup:
        return group

    if not hasattr(dist.Backend, _BACKEND.upper()):
        dist.Backend.register_backend(_BACKEND, create, devices=["cpu", "cuda"])
    dist.init_process_group(
        _BACKEND, store=dist.HashStore(), rank=session.rank, world_size=session.size
    )


class _Done(dist._Work):
    """Work that is over: elastic collectives wait before they return."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: Any = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class ElasticProcessGroup(dist.ProcessGroup):
    def __init__(self, session: Session) -> None:
        super().__init__(session.rank, session.size)
        self._session = session

    def rank(self) -> int:
        return self._session.rank

    def size(self) -> int:
        return self._session.size

    def getBackendName(self) -> str:
        return _BACKEND

    def name(self) -> str:
        return _BACKEND

    def allreduce(self, tensors: Any, opts: Any = None) -> _Done:
        return self._run("allreduce", tensors, tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> _Done:
        return self._run("allreduce_coalesced", tensors, tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> _Done:
        return self._run("broadcast", tensors, tensors, opts)

    def reduce(self, tensors: Any, opts: Any = None) -> _Done:
        return self._run("reduce", tensors, tensors, opts)

    def barrier(self, opts: Any = None) -> _Done:
        # An all-reduce: the options of a barrier name a device that the group may not have.
        flag = torch.zeros(1)
        return self._run("allreduce", flag, [flag], None)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        def copy_own() -> None:
            for row, tensor in zip(outputs, inputs, strict=True):
                for output in row:
                    output.copy_(tensor)

        return self._run("allgather", outputs, outputs, inputs, opts, alone=copy_own)

    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None) -> _Done:
        def copy_own() -> None:
            for part in output.view(self.size(), *tensor.shape):
                part.copy_(tensor)

        return self._run("_allgather_base", output, output, tensor, opts, alone=copy_own)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        def copy_own() -> None:
            for row, tensor in zip(outputs, inputs, strict=False):
                for output in row:
                    output.copy_(tensor)

        return self._run("gather", outputs, outputs, inputs, opts, alone=copy_own)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        def copy_own() -> None:
            for output, row in zip(outputs, inputs, strict=False):
                output.copy_(row[0])

        return self._run("scatter", outputs, outputs, inputs, opts, alone=copy_own)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        def copy_own() -> None:
            for output, row in zip(outputs, inputs, strict=True):
                output.copy_(row[self.rank()])

        return self._run("reduce_scatter", outputs, outputs, inputs, opts, alone=copy_own)

    def alltoall_base(
        self, output: Any, tensor: Any, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> _Done:
        args = (output, tensor, output_sizes, input_sizes, opts)
        return self._run("alltoall_base", output, *args, alone=lambda: output.copy_(tensor))

    def _run(self, operation: str, result: Any, *args: Any, alone: Any = None) -> _Done:
        """Run it in the group that stands behind this one at the moment. `alone` does what it would
        do if there were no other member."""
        session = self._session
        generation = session.generation if session.entered else session.rendezvous.await_formed()
        assert generation is not None
        group, size = _group(generation, session.entered)
        done = False
        if size > 1 and generation.error is None:
            given = args if args[-1] is not None else args[:-1]
            done = _complete(generation, group, operation, given)
        if not done and alone is not None:
            alone()
        return _Done(result)


def _group(generation: Generation, entered: bool) -> tuple[Any, int]:
    if entered or generation.prefix_size == generation.size:
        return generation.data, generation.size
    return generation.prefix, generation.prefix_size


def _complete(generation: Generation, group: Any, operation: str, args: Any) -> bool:
    try:
        generation.wait(getattr(group, operation)(*args))
    except PeerLostError:
        return False
    except RuntimeError as error:
        generation.fail(str(error))
        return False
    return True
