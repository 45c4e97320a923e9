"""Training jobs on a cluster that is known by its dashboard's address only."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shoal.core.errors import AuthError, UnreachableError
from shoal.jobs import follow
from shoal.ops.train_job_api import RayJobApi
from shoal.train.job.job_spec import JobSpec


class Dashboard(ThreadingHTTPServer):
    """Answers as Ray's job API does. The job prints a line more each time its logs are read."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.packages: dict[str, bytes] = {}
        self.submitted: dict[str, object] = {}
        self.tokens: list[str | None] = []
        self.refuses = False
        self.lines = ["one", "two", "three"]
        self.printed = 0


class Requests(BaseHTTPRequestHandler):
    server: Dashboard

    def do_PUT(self) -> None:
        self.server.packages[self.path] = self._body()
        self._answer(b"")

    def do_POST(self) -> None:
        self.server.submitted = json.loads(self._body())
        self._answer(json.dumps({"submission_id": self.server.submitted["submission_id"]}).encode())

    def do_GET(self) -> None:
        board = self.server
        if "/api/v0/logs/" in self.path:
            # A stream that ends too early is opened again.
            board.printed = min(len(board.lines), board.printed + 1)
            text = "".join(f"{line}\n" for line in board.lines[: board.printed])
            if board.printed < len(board.lines):
                text += board.lines[board.printed][:2]
            self._answer(text.encode())
            return
        is_over = board.printed >= len(board.lines) - 1
        status = {"status": "FAILED", "driver_exit_code": 4} if is_over else {"status": "RUNNING"}
        status |= {"submission_id": "j", "driver_node_id": "n"}
        self._answer(json.dumps(status).encode())

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, body: bytes) -> None:
        self.server.tokens.append(self.headers.get("Authorization"))
        self.send_response(401 if self.server.refuses else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    monkeypatch.setattr(follow, "_POLL_S", 0.01)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    board = Dashboard()
    thread = threading.Thread(target=board.serve_forever, daemon=True)
    thread.start()
    yield board
    board.shutdown()
    board.server_close()
    thread.join()


async def test_a_job_is_followed_line_by_line_to_its_status(dashboard: Dashboard) -> None:
    api = RayJobApi(dashboard.address)
    lines: list[str] = []
    done = await api.run(["list"], lambda line, stream: lines.append(line))
    assert lines == ["one", "two", "three"]
    assert done.code == 4
    assert done.tail == ("one", "two", "three")
    assert set(dashboard.tokens) == {"Bearer secret"}


async def test_the_users_code_cannot_hide_a_module_from_ray(dashboard: Dashboard) -> None:
    api = RayJobApi(dashboard.address)
    path = await api.send(JobSpec("j", "code.py"), b"the code")
    await api.run(["run", path], lambda line, stream: None)
    (content,) = dashboard.packages.values()
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        names = package.namelist()
        assert package.read("files/code.zip") == b"the code"
    assert "shoal/train/job/__main__.py" in names
    assert {name.split("/")[0] for name in names} == {"shoal", "files"}
    assert "run files" in str(dashboard.submitted["entrypoint"])


async def test_a_wrong_token_is_named(dashboard: Dashboard) -> None:
    dashboard.refuses = True
    with pytest.raises(AuthError) as refused:
        await RayJobApi(dashboard.address).run(["list"], lambda line, stream: None)
    assert "RAY_AUTH_TOKEN" in refused.value.fix


async def test_a_dashboard_that_does_not_answer_is_named() -> None:
    with pytest.raises(UnreachableError, match="cannot reach"):
        await RayJobApi("http://127.0.0.1:1").run(["list"], lambda line, stream: None)
