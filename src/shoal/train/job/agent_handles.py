"""The agents of a job as its controller sees them: created where workers are placed, and given up
when they are silent."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.core.logs import suppress_and_log
from shoal.train.job.agent_actor import AgentActor
from shoal.train.job.job_spec import CODE_FILE, NAMESPACE, JobSpec

_log = logging.getLogger(__name__)

_NODE_LOST_S = 3.0
# An agent is a process of Ray, which takes a while to start.
_START_S = 60.0
# After such a pause the controller was held up, not the agents.
_PAUSE_S = 1.0


@dataclass
class AgentHandle:
    id: str
    node: str
    actor: Any
    heard: float
    connected: bool = False
    has_shared_files: bool = False


class AgentHandles:
    def __init__(self, spec: JobSpec, spec_json: str) -> None:
        self.by_node: dict[str, AgentHandle] = {}
        self._spec = spec
        self._spec_json = spec_json
        self._code: Any = None
        self._given_up: set[str] = set()  # ids
        self._checked_at = time.monotonic()

    def create(self, node: str) -> AgentHandle:
        """Start an agent on a node, under a name that was never used."""
        if self._code is None:
            self._code = ray.put(Path(self._spec.path / CODE_FILE).read_bytes())
        id = f"{self._spec.agent_name(node)}-{time.time_ns()}"
        actor = (
            ray.remote(AgentActor)
            .options(
                num_cpus=0,
                name=id,
                namespace=NAMESPACE,
                lifetime="detached",
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(id, node, self._spec_json)
        )
        actor.open.remote(self._code)
        agent = self.by_node[node] = AgentHandle(id, node, actor, time.monotonic())
        return agent

    def adopt(self, id: str, node: str) -> None:
        """An agent of the controller before this one."""
        actor = ray.get_actor(id, NAMESPACE)
        self.by_node[node] = AgentHandle(id, node, actor, time.monotonic(), True, True)

    def hear(self, id: str) -> bool:
        """A heartbeat. Returns whether the agent is known."""
        for agent in self.by_node.values():
            if agent.id == id:
                agent.heard, agent.connected = time.monotonic(), True
                return True
        return False

    def is_given_up(self, id: str) -> bool:
        return id in self._given_up

    def give_up_silent(self, now: float) -> list[str]:
        """The nodes whose agents are silent for too long. They are not listened to again."""
        pause = now - self._checked_at
        self._checked_at = now
        if pause > _PAUSE_S:
            for agent in self.by_node.values():
                agent.heard += pause  # their heartbeats wait in the queue
        limits = {True: _NODE_LOST_S, False: _START_S}
        lost = [a for a in self.by_node.values() if now - a.heard > limits[a.connected]]
        for agent in lost:
            self._given_up.add(agent.id)
            del self.by_node[agent.node]
            self._kill(agent)
        return [agent.node for agent in lost]

    def close(self, seconds: float) -> None:
        """End all agents and their workers. Blocks."""
        closing = [agent.actor.close.remote() for agent in self.by_node.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=seconds)
        for agent in self.by_node.values():
            self._kill(agent)

    @staticmethod
    def _kill(agent: AgentHandle) -> None:
        with suppress_and_log(_log, f"end the agent on {agent.node}", Exception):
            ray.kill(agent.actor)
