"""A generation: one membership of the job's workers, and the process groups that connect them.

A collective that waits for a lost peer must not block forever and must not raise into the user's
loop. So nothing here calls `Work.wait`: a wait ends when the work is done or when the generation
has failed, whichever comes first. The abandoned work keeps its buffers until `close` has ended the
connections.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from shoal.train import messages
from shoal.train.worker import group_sockets

FORM_TIMEOUT = timedelta(seconds=60)
# A worker may compute, validate or sleep for long: only the node agents judge who is lost.
COLLECTIVE_TIMEOUT = timedelta(days=7)


class PeerLostError(Exception):
    """A collective failed because a member is lost. It never reaches the user's code."""


class Generation:
    """This worker's place in a membership. `fail` ends all its waits."""

    def __init__(self, membership: messages.Generation, worker: str) -> None:
        self.membership = membership
        self.number = membership.generation
        self.size = len(membership.members)
        self.rank = membership.rank(worker)
        self.error: str | None = None
        self.data: Any = None
        self.control: Any = None
        self.prefix: Any = None
        self.prefix_rank = 0
        self.prefix_size = 1
        self._store: Any = None
        self._sockets: set[group_sockets.Socket] = set()
        self._hosts: set[str] = set()
        self._lock = threading.Lock()
        self._waits: set[threading.Event] = set()

    # --- forming ---

    def form(self, store: Any, host: str, backend: str = "gloo") -> None:
        """Connect with all other members. Blocks until they have done the same."""
        self._store = store
        others = group_sockets.open_sockets()
        self.prefix_rank, self.prefix_size = self._place_among_joiners()
        if self.prefix_size > 1 and self.prefix_size < self.size:
            self.prefix = _gloo(store, "prefix", self.prefix_rank, self.prefix_size, host)
        if self.size > 1:
            self.control = _gloo(store, "control", self.rank, self.size, host)
            if backend == "nccl":
                self.data = _nccl(store, self.rank, self.size)
            else:
                self.data = _gloo(store, "data", self.rank, self.size, host)
        if self.prefix_size == self.size:
            self.prefix = self.data
        self._sockets = group_sockets.open_sockets() - others
        self._hosts = self._hosts_of_members(host)

    def _hosts_of_members(self, host: str) -> set[str]:
        if self.size == 1:
            return {host}
        self._store.set(f"host-{self.rank}", host)
        return {self._store.get(f"host-{rank}").decode() for rank in range(self.size)}

    def _place_among_joiners(self) -> tuple[int, int]:
        joiners = self.membership.joiners
        worker = self.membership.members[self.rank]
        return (joiners.index(worker), len(joiners)) if worker in joiners else (0, 1)

    @property
    def store(self) -> Any:
        return self._store

    # --- waiting ---

    def fail(self, error: str) -> None:
        """Give up all collectives of this generation, now and later."""
        with self._lock:
            self.error = self.error or error
            waits = list(self._waits)
        for event in waits:
            event.set()

    def wait(self, work: Any) -> None:
        """Wait until `work` is done. Raises PeerLostError if it failed or the generation has."""
        self._wait_for(work.get_future())

    def _wait_for(self, future: Any) -> None:
        event = threading.Event()
        future.add_done_callback(lambda _: event.set())
        with self._lock:
            self._waits.add(event)
        try:
            if self.error is None:
                event.wait()
        finally:
            with self._lock:
                self._waits.discard(event)
        self._check(future)

    def when_done(self, work: Any, act: Callable[[], None]) -> None:
        """Call `act` once: when `work` is done, has failed, or is given up."""
        once = threading.Lock()
        event = _Callback(lambda: act() if once.acquire(blocking=False) else None)

        def done(future: Any) -> None:
            with self._lock:
                self._waits.discard(event)
            with contextlib.suppress(PeerLostError):
                self._check(future)
            event.set()

        with self._lock:
            self._waits.add(event)
        work.get_future().add_done_callback(done)
        if self.error is not None:
            event.set()

    def _check(self, future: Any) -> None:
        if future.done():
            try:
                future.wait()
            except Exception as error:
                self.fail(str(error))
            else:
                return
        raise PeerLostError(self.error)

    # --- small collectives of our own ---

    def start_exchange(self, value: object) -> Exchange:
        """Send a small picklable value to all members, and begin to receive theirs."""
        return Exchange(self, self.control, self.size, value)

    def exchange(self, value: object) -> list[Any]:
        return self.start_exchange(value).result()

    def exchange_among_joiners(self, value: object) -> list[Any]:
        """As `exchange`, for workers that run the beginning of their script."""
        group = self.control if self.prefix_size == self.size else self.prefix
        return Exchange(self, group, self.prefix_size, value).result()

    def send(self, tensors: Sequence[torch.Tensor], to: int) -> None:
        self._in_thread(lambda: [self.control.send([t], to, _STATE_TAG).wait() for t in tensors])

    def receive(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        self._in_thread(
            lambda: [self.control.recv([t], source, _STATE_TAG).wait() for t in tensors]
        )

    def _in_thread(self, act: Callable[[], object]) -> None:
        """For work that has no future: if the generation fails, its thread is left behind."""
        future: Any = torch.futures.Future()

        def run() -> None:
            try:
                act()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        threading.Thread(target=run, name="shoal-transfer", daemon=True).start()
        self._wait_for(future)

    def close(self) -> None:
        """Close the connections, without waiting. Members that still wait for this one see an
        error."""
        groups = [group for group in (self.data, self.control, self.prefix) if group is not None]
        self.data = self.control = self.prefix = self._store = None
        if self.error is not None:
            group_sockets.shut_down(self._sockets, self._hosts)
        if groups:
            # The end of a group waits for its last collective.
            end = _abort if self.error is not None else _release
            threading.Thread(target=end, args=(groups,), name="shoal-close", daemon=True).start()


def _release(groups: list[Any]) -> None:
    while groups:
        groups.pop()


def _abort(groups: list[Any]) -> None:
    for group in groups:
        with contextlib.suppress(Exception):
            group.abort()  # which NCCL needs, and Gloo does not know
    del group
    _release(groups)


_STATE_TAG = 7
_HEADER = struct.Struct("<I")
_INLINE = 508  # bytes that travel with the first message; most exchanges need no second one


class Exchange:
    """An all-gather of one pickled value per member: one message if all values are small."""

    def __init__(self, generation: Generation, group: Any, size: int, value: object) -> None:
        self._generation = generation
        self._group = group
        self._size = size
        self._payload = pickle.dumps(value)
        self._values: list[Any] | None = None
        if size == 1:
            self._values = [value]
            return
        if generation.error is not None:
            self._work = None
            return
        head = self._payload if len(self._payload) <= _INLINE else b""
        block = _HEADER.pack(len(self._payload)) + head
        self._mine = _bytes(block, _HEADER.size + _INLINE)
        self._theirs = [torch.empty_like(self._mine) for _ in range(size)]
        try:
            self._work = group.allgather([self._theirs], [self._mine])
        except RuntimeError as error:
            generation.fail(str(error))
            self._work = None

    def result(self) -> list[Any]:
        if self._values is None:
            if self._work is None:
                raise PeerLostError(self._generation.error)
            self._generation.wait(self._work)
            blocks = [tensor.numpy().tobytes() for tensor in self._theirs]
            sizes = [_HEADER.unpack_from(block)[0] for block in blocks]
            payloads = [block[_HEADER.size :] for block in blocks]
            if max(sizes) > _INLINE:
                payloads = self._gather_large(max(sizes))
            self._values = [
                pickle.loads(payload[:size]) for payload, size in zip(payloads, sizes, strict=True)
            ]
        return self._values

    def _gather_large(self, size: int) -> list[bytes]:
        mine = _bytes(self._payload, size)
        theirs = [torch.empty_like(mine) for _ in range(self._size)]
        try:
            work = self._group.allgather([theirs], [mine])
        except RuntimeError as error:
            self._generation.fail(str(error))
            raise PeerLostError(self._generation.error) from None
        self._generation.wait(work)
        return [tensor.numpy().tobytes() for tensor in theirs]


class _Callback(threading.Event):
    """An event that acts when it is set: what `fail` does for a wait, it does for a callback."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def set(self) -> None:
        super().set()
        self._act()


def make_store(host: str) -> Any:
    """The store through which the members of a generation find each other."""
    return dist.TCPStore(
        host, 0, is_master=True, wait_for_workers=False, timeout=FORM_TIMEOUT, use_libuv=True
    )


def connect_store(host: str, port: int) -> Any:
    return dist.TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=FORM_TIMEOUT, use_libuv=True
    )


def _gloo(store: Any, purpose: str, rank: int, size: int, host: str) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = FORM_TIMEOUT
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._threads = 2
    group = dist.ProcessGroupGloo(dist.PrefixStore(purpose, store), rank, size, options)
    group._set_default_timeout(COLLECTIVE_TIMEOUT)
    return group


def _nccl(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = COLLECTIVE_TIMEOUT
    return dist.ProcessGroupNCCL(dist.PrefixStore("data", store), rank, size, options)


def _bytes(data: bytes, size: int) -> torch.Tensor:
    tensor = torch.zeros(size, dtype=torch.uint8)
    tensor[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return tensor
