"""How a worker gets to know the generations it belongs to, and connects with their members.

All of it happens in the background: the training thread only asks what is there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from shoal.train import env, messages
from shoal.train.worker.control_link import ControlLink
from shoal.train.worker.generation import (
    FORM_TIMEOUT,
    Generation,
    connect_store,
    make_store,
)

_EPOCH_KEY = "epoch"
_EPOCH_POLL = 0.05
_MEMBERS_KEY = "members"
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.1
_DEFAULT_BACKEND = "gloo"


class Rendezvous:
    """The generations of a job, as its controller announces them. Without a controller: the one
    that the environment describes."""

    def __init__(self, worker: str, host: str, link: ControlLink | None) -> None:
        self.worker = worker
        self.host = host
        self.epoch: int | None = None  # of this worker, if it trains: those that join ask for it
        self.committed = 0
        self.coming: messages.Generation | None = None
        self.is_elastic = link is not None
        self._link = link
        self._changed = threading.Condition()
        self._stores: dict[int, Any] = {}
        self._formed: dict[int, Generation] = {}
        self._cancelled: set[int] = set()
        self._backend: str | None = None

    def use_backend(self, backend: str) -> None:
        """What the script wants for its own collectives: no group is connected before it is known,
        since all members must have the same."""
        with self._changed:
            self._backend = self._backend or backend
            self._changed.notify_all()

    def send(self, message: messages.WorkerMessage) -> None:
        if self._link is not None:
            self._link.send(message)

    # --- from the controller ---

    def announce(self, membership: messages.Generation) -> None:
        if self.worker not in membership.members:
            return  # this worker leaves when the others switch to it
        with self._changed:
            self.coming = membership
            self._changed.notify_all()
        if membership.store is not None:
            self._in_background(self._form, membership)
        elif membership.rank(self.worker) == 0:
            self._in_background(self._make_store, membership)

    def commit(self, number: int) -> None:
        with self._changed:
            self.committed = max(self.committed, number)
            self._changed.notify_all()

    def cancel(self, number: int) -> None:
        with self._changed:
            self._cancelled.add(number)
            self._formed.pop(number, None)
            self._stores.pop(number, None)
            self._changed.notify_all()

    def _in_background(
        self, act: Callable[[messages.Generation], None], membership: messages.Generation
    ) -> None:
        name = f"shoal-generation-{membership.generation}"
        threading.Thread(target=act, args=(membership,), name=name, daemon=True).start()

    def _make_store(self, membership: messages.Generation) -> None:
        store = make_store(self.host)
        self._stores[membership.generation] = store
        self.send(messages.Store(self.worker, membership.generation, self.host, store.port))

    def _form(self, membership: messages.Generation) -> None:
        number = membership.generation
        generation = Generation(membership, self.worker)
        try:
            store = self._stores.pop(number, None)
            if store is None:
                assert membership.store is not None
                store = connect_store(membership.store.host, membership.store.port)
            if not self._await_members(store, membership):
                return
            assert self._backend is not None
            generation.form(store, self.host, self._backend)
            if self.epoch is not None:
                self._tell_epoch(generation, self.epoch)
        except Exception as error:
            self.send(messages.FormFailed(self.worker, number, str(error)[:300]))
            return
        with self._changed:
            if number in self._cancelled:
                return
            self._formed[number] = generation
            self._changed.notify_all()
        self.send(messages.Formed(self.worker, number))

    def _await_members(self, store: Any, membership: messages.Generation) -> bool:
        """Wait until all members are about to connect: a joiner's script may take long to come
        there. False if the generation is cancelled meanwhile."""
        number, pause = membership.generation, _FIRST_PAUSE

        def is_over() -> bool:
            coming = self.coming
            return number in self._cancelled or (coming is not None and coming.generation > number)

        with self._changed:
            self._changed.wait_for(lambda: self._backend is not None or is_over())
        if is_over():
            return False
        count = store.add(_MEMBERS_KEY, 1)
        while count < len(membership.members):
            time.sleep(pause)
            if is_over():
                return False
            pause = min(2 * pause, _LAST_PAUSE)
            count = store.add(_MEMBERS_KEY, 0)
        return True

    # --- for the training thread ---

    def await_membership(self) -> None:
        """Wait until the controller has said in which generation this worker begins."""
        with self._changed:
            self._changed.wait_for(lambda: self.coming is not None)

    def await_formed(self) -> Generation:
        """The coming generation, when its groups are connected."""
        self.use_backend(_DEFAULT_BACKEND)
        if not self.is_elastic:
            return self._from_environment()
        with self._changed:
            while True:
                coming = self.coming
                if coming is not None and coming.generation in self._formed:
                    return self._formed[coming.generation]
                self._changed.wait()

    def await_commit(self, after: int) -> Generation:
        """The generation to switch to: all its members are ready."""
        self.use_backend(_DEFAULT_BACKEND)
        if not self.is_elastic:
            return self._from_environment()
        with self._changed:
            while not (self.committed > after and self.committed in self._formed):
                self._changed.wait()
            return self._formed[self.committed]

    def formed(self, number: int) -> Generation | None:
        with self._changed:
            return self._formed.get(number)

    def give_up(self, number: int, why: str) -> None:
        """A member of that generation is lost: nothing in it, or before it, can be waited for."""
        with self._changed:
            broken = [each for each in self._formed.values() if each.number <= number]
        for generation in broken:
            generation.fail(why)

    def forget_before(self, number: int) -> None:
        with self._changed:
            old = [self._formed.pop(each) for each in list(self._formed) if each < number]
        for generation in old:
            generation.close()

    # --- epochs ---

    def begin_epoch(self, epoch: int) -> None:
        """This worker trains, and its epoch is `epoch` now: workers that join want to know."""
        self.epoch = epoch
        with self._changed:
            generations = list(self._formed.values())
        for generation in generations:
            with contextlib.suppress(RuntimeError):  # its store may be gone with rank 0
                self._tell_epoch(generation, epoch)

    def first_epoch(self, own: int) -> int:
        """The epoch in which a joiner begins: that of the workers that train. If all are joiners,
        rank 0 knows it from the checkpoint and tells the others."""
        while True:
            generation = self.await_formed()
            if generation.size == 1:
                return own
            try:
                if generation.rank == 0:
                    self._tell_epoch(generation, own)
                    return own
                if generation.store.check([_EPOCH_KEY]):
                    return max(own, int(generation.store.get(_EPOCH_KEY)))
            except RuntimeError:  # the store went with rank 0; another generation follows
                pass
            time.sleep(_EPOCH_POLL)

    @staticmethod
    def _tell_epoch(generation: Generation, epoch: int) -> None:
        if generation.rank == 0 and generation.size > 1 and generation.store is not None:
            generation.store.set(_EPOCH_KEY, str(epoch))

    # --- without a controller ---

    def set_environment(self, init_method: str | None, size: int | None, rank: int | None) -> None:
        """Where the other workers are. The environment says what is not given."""
        if self.is_elastic:
            return
        if init_method is not None:
            host, _, port = init_method.removeprefix("tcp://").rpartition(":")
            os.environ["ADAPTDL_MASTER_ADDR"] = host
            os.environ["ADAPTDL_MASTER_PORT"] = port
        if size is not None:
            os.environ["ADAPTDL_NUM_REPLICAS"] = str(size)
        if rank is not None:
            os.environ["ADAPTDL_REPLICA_RANK"] = str(rank)

    def _from_environment(self) -> Generation:
        if 1 not in self._formed:
            place = env.PLACE_IN_ENVIRONMENT
            size, rank = place.size, place.rank
            members = tuple(str(index) for index in range(size))
            self.worker = str(rank)
            membership = messages.Generation(1, members, (), members, None, False)
            generation = Generation(membership, self.worker)
            store = None
            if size > 1:
                address = env.master_addr()
                store = dist.TCPStore(
                    address, env.master_port(), size, is_master=rank == 0, timeout=FORM_TIMEOUT
                )
                self.host = _address_towards(address)
            assert self._backend is not None
            generation.form(store, self.host, self._backend)
            self._formed[1] = generation
        return self._formed[1]


def _address_towards(peer: str) -> str:
    """This machine's address on the interface that leads to `peer`. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
