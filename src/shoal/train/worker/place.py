"""Where a worker stands in its job: in the generation that trains, or in the one that comes."""

from __future__ import annotations

from shoal.train import env, messages
from shoal.train.worker.generation import Generation
from shoal.train.worker.rendezvous import Rendezvous


class WorkerPlace:
    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self.generation: Generation | None = None

    @property
    def worker(self) -> str:
        return self.rendezvous.worker

    @property
    def rank(self) -> int:
        membership = self._membership
        return membership.rank(self.worker) if membership else env.PLACE_IN_ENVIRONMENT.rank

    @property
    def size(self) -> int:
        membership = self._membership
        return len(membership.members) if membership else env.PLACE_IN_ENVIRONMENT.size

    @property
    def num_nodes(self) -> int:
        membership = self._membership
        if membership is None or not membership.nodes:
            return env.PLACE_IN_ENVIRONMENT.num_nodes
        return len(set(membership.nodes))

    @property
    def num_restarts(self) -> int:
        membership = self._membership
        if membership is None or not self.rendezvous.is_elastic:
            return env.PLACE_IN_ENVIRONMENT.num_restarts
        return max(0, membership.generation - 1)

    @property
    def _membership(self) -> messages.Generation | None:
        running = self.generation
        return running.membership if running is not None else self.rendezvous.coming
