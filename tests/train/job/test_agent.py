"""The agent on a node, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.train.job.agent import Agent, AgentEvent, ExitEvent, MessageEvent, OutputEvent
from shoal.train.messages import Commit, Generation, Hello, Note, Prepared, Store
from tests.polling import alive, until

STAND_IN = Path(__file__).with_name("stand_in_worker.py")


class Node:
    """An agent, and everything it has reported."""

    def __init__(self, agent: Agent, directory: Path) -> None:
        self.agent = agent
        self.directory = directory
        self.events: list[AgentEvent] = []

    async def start(self, worker: str, script: str) -> None:
        """Start a worker whose script does not use the library."""
        path = self.directory / f"{worker}.py"
        path.write_text(f"LIBRARY = False\n{script}")
        env = {
            **os.environ, "SHOAL_TRAIN_SOCKET": self.agent.socket, "SHOAL_TRAIN_WORKER": worker,
            "SHOAL_TRAIN_HOST": "127.0.0.1", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        command = [sys.executable, str(STAND_IN), str(path)]
        await self.agent.start_worker(worker, command, self.directory, env)

    def announce(self, worker: str, *members: str) -> None:
        generation = Generation(1, members, ("n",) * len(members), members, None, False)
        self.agent.deliver(worker, generation)

    async def exit_of(self, worker: str) -> ExitEvent:
        await until(lambda: self._exits(worker), f"{worker} exited", timeout=30)
        return self._exits(worker)[0]

    async def message_of(self, worker: str, kind: type) -> MessageEvent:
        def found() -> list[MessageEvent]:
            self._drain()
            return [
                e for e in self.events
                if isinstance(e, MessageEvent)
                and e.message.worker == worker
                and isinstance(e.message, kind)
            ]  # fmt: skip

        await until(found, f"{kind.__name__} of {worker}", timeout=30)
        return found()[0]

    def lines(self) -> list[str]:
        self._drain()
        return [line for e in self.events if isinstance(e, OutputEvent) for line in e.lines]

    def _exits(self, worker: str) -> list[ExitEvent]:
        self._drain()
        return [e for e in self.events if isinstance(e, ExitEvent) and e.worker == worker]

    def _drain(self) -> None:
        while not self.agent.events.empty():
            self.events.append(self.agent.events.get_nowait())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    agent = Agent("n1", tmp_path / "logs")
    await agent.open()
    yield Node(agent, tmp_path)
    await agent.close()


async def test_a_message_sent_before_the_worker_connects_reaches_it(node: Node) -> None:
    await node.start("w1", "")
    node.announce("w1", "w1")
    exit = await node.exit_of("w1")
    assert exit.exit.code == 0
    kinds = [type(e.message) for e in node.events if isinstance(e, MessageEvent)]
    assert kinds == [Hello, Store, Note]
    assert node.events[-1] is exit  # the last word comes before the exit


async def test_the_lines_of_rank_0_are_reported_and_those_of_others_kept(node: Node) -> None:
    await node.start("w1", "SECONDS = 0.3; TEXT = 'from rank 0'")
    await node.start("w2", "SECONDS = 0.3; TEXT = 'from rank 1'; STATUS = 3")
    for worker in ("w1", "w2"):
        node.announce(worker, "w1", "w2")
    first, second = await node.exit_of("w1"), await node.exit_of("w2")
    assert node.lines() == ["from rank 0"]
    assert first.exit.lines == ()  # the user has seen them
    assert second.exit.code == 3
    assert second.exit.lines == ("from rank 1",)
    assert (node.directory / "logs" / "w2.log").read_text() == "from rank 1\n"


async def test_a_signal_is_reported_as_such(node: Node) -> None:
    await node.start("w1", "STATUS = -9")
    node.announce("w1", "w1")
    exit = (await node.exit_of("w1")).exit
    assert (exit.code, exit.signal, exit.frozen) == (None, 9, False)


async def test_a_program_that_cannot_be_started_is_an_exit_with_127(node: Node) -> None:
    await node.agent.start_worker("w1", ["/no/such/python"], node.directory, {})
    exit = (await node.exit_of("w1")).exit
    assert exit.code == 127
    assert "No such file" in exit.lines[0]


async def test_a_stopped_worker_is_killed_and_reported_as_frozen(node: Node) -> None:
    await node.start("w1", "SECONDS = 600")
    node.announce("w1", "w1")
    hello = (await node.message_of("w1", Hello)).message
    assert isinstance(hello, Hello)
    os.kill(hello.pid, signal.SIGSTOP)
    exit = (await node.exit_of("w1")).exit
    assert exit.frozen
    assert exit.signal == signal.SIGKILL


async def test_a_worker_that_is_stopped_for_a_moment_goes_on(node: Node) -> None:
    await node.start("w1", "SECONDS = 1")
    node.announce("w1", "w1")
    hello = (await node.message_of("w1", Hello)).message
    assert isinstance(hello, Hello)
    pid = hello.pid
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: node.agent._workers["w1"].stopped_since is not None, "seen as stopped")
    os.kill(pid, signal.SIGCONT)
    assert (await node.exit_of("w1")).exit.code == 0


async def test_the_children_of_a_worker_do_not_outlive_it(node: Node) -> None:
    await node.start(
        "w1",
        "import subprocess; SECONDS = 0.3\n"
        "TEXT = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid",
    )
    node.announce("w1", "w1")
    await node.exit_of("w1")
    child = int(node.lines()[0])
    await until(lambda: not alive(child), "the child is gone", timeout=10)


async def test_a_closed_agent_leaves_no_process(node: Node) -> None:
    await node.start("w1", "SECONDS = 600")
    node.announce("w1", "w1")
    hello = (await node.message_of("w1", Hello)).message
    assert isinstance(hello, Hello)
    await node.agent.close()
    assert not alive(hello.pid)
    assert not Path(node.agent.socket).exists()


async def test_an_agent_reports_what_a_restarted_controller_must_know(node: Node) -> None:
    await node.start("w1", "SECONDS = 600; LIBRARY = True")
    node.announce("w1", "w1")
    await node.message_of("w1", Prepared)
    node.agent.deliver("w1", Commit(1))
    (report,) = node.agent.reports()
    assert (report.worker, report.node, report.connected) == ("w1", "n1", True)
    assert report.uses_library
    assert report.prepared
    assert report.committed == 1
    assert report.last is not None
    assert report.last.generation == 1


async def test_messages_to_unknown_workers_are_ignored(node: Node) -> None:
    node.agent.deliver("w9", Commit(1))
    node.agent.kill("w9")
    await asyncio.sleep(0)
    assert node.agent.reports() == []
