"""Following a job over connections that break."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import NotFoundError, ShoalError, UnreachableError
from shoal.jobs import follow
from shoal.jobs.client import RayJobClient
from shoal.jobs.follow import JobFollower

_LOG = b"".join(b"line %d \xff\n" % n for n in range(2000))


class Dashboard:
    """Serves a job whose log grows with each request for it. It cuts each of the first `cuts`
    streams in the middle of a chunk."""

    def __init__(self, cuts: int) -> None:
        self.cuts = cuts
        self.streams = 0
        self.is_known = True
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        if "/logs/" not in path:
            ended = self.streams > self.cuts
            status = {"status": "SUCCEEDED" if ended else "RUNNING", "driver_node_id": "n"}
            body = json.dumps({**status, "submission_id": "j", "driver_exit_code": 0}).encode()
            code = b"200 OK" if self.is_known else b"404 Not Found"
            length = b"%d" % len(body)
            reply = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %b\r\n\r\n%b"
            writer.write(reply % (code, length, body))
        else:
            self.streams += 1
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n" % len(_LOG))
            end = len(_LOG) * self.streams // (self.cuts + 1)
            is_cut = self.streams <= self.cuts
            writer.write(_LOG[: end - 3] if is_cut else _LOG + b"\r\n0\r\n\r\n")
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[RayJobClient]:
        yield RayJobClient(self.address)


@contextlib.asynccontextmanager
async def dashboard(cuts: int) -> AsyncIterator[Dashboard]:
    board = Dashboard(cuts)
    server = await asyncio.start_server(board.serve, "127.0.0.1", 0)
    async with server:
        board.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield board


async def test_output_goes_on_after_a_lost_connection_without_a_byte_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "_RECONNECT_S", 0.01)
    monkeypatch.setattr(follow, "_POLL_S", 0.01)
    written = bytearray()
    lost: list[UnreachableError] = []
    async with dashboard(cuts=3) as board:
        follower = JobFollower(
            board.connect, "j", written.extend, SystemClock(), on_lost=lost.append
        )
        job = await asyncio.wait_for(follower.follow(), 60)
    assert bytes(written) == _LOG
    assert job.status_code == 0
    assert lost


async def test_an_unknown_job_is_an_error_at_once() -> None:
    async with dashboard(cuts=0) as board:
        board.is_known = False
        follower = JobFollower(board.connect, "j", lambda chunk: None, SystemClock())
        with pytest.raises(NotFoundError, match="unknown job: j"):
            await follower.follow()


async def test_a_job_that_a_restarted_ray_does_not_know_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "_RECONNECT_S", 0.01)
    monkeypatch.setattr(follow, "_POLL_S", 0.01)
    async with dashboard(cuts=10) as board:

        def forget(error: UnreachableError) -> None:
            board.is_known = False

        follower = JobFollower(
            board.connect, "j", lambda chunk: None, SystemClock(), on_lost=forget
        )
        with pytest.raises(ShoalError, match="job j is lost: the Ray of the head was restarted"):
            await asyncio.wait_for(follower.follow(), 60)


async def test_following_gives_up_when_nothing_answers_for_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "_RECONNECT_S", 0.01)

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[RayJobClient]:
        yield RayJobClient("http://127.0.0.1:1")

    follower = JobFollower(connect, "j", lambda chunk: None, SystemClock(), patience_s=0.05)
    with pytest.raises(UnreachableError, match="cannot reach"):
        await asyncio.wait_for(follower.follow(), 30)
