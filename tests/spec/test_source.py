"""Reading the text of cluster files from paths and URLs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shoal.spec import load
from shoal.spec.yaml_source import SIZE_LIMIT

from .conftest import error_line


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x7fELF\0\0\0", "is a binary file"),
        (b"a: 1\nb: \xff\xfe\n", ":2  is not UTF-8 text"),
        (b"a: " + b"x" * 10_000_000, "is larger than 1 MB"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_content_that_is_not_text_is_one_error_line(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(content)
    assert expected in error_line(path)


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    assert error_line(tmp_path / "no.yaml") == f"{tmp_path}/no.yaml  no such file"
    assert error_line(tmp_path).endswith("is a directory, not a cluster file")


def test_a_byte_order_mark_and_crlf_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes("\ufeffcluster_name: w\r\nprovider:\r\n  type: aws\r\n".encode())
    assert load(path).spec.cluster_name == "w"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        pages = {
            "/ok.yaml": b"cluster_name: far\nprovider: {type: aws}\n",
            "/big.yaml": b"#" * (SIZE_LIMIT + 1),
        }
        self.send_response(200 if self.path in pages else 404)
        self.end_headers()
        self.wfile.write(pages.get(self.path, b""))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_can_be_fetched_from_a_url(server_url: str) -> None:
    result = load(f"{server_url}/ok.yaml")
    assert result.spec.cluster_name == "far"
    assert str(result.origin_of("cluster_name")) == f"{server_url}/ok.yaml:1"


def test_errors_of_fetching(server_url: str) -> None:
    assert "HTTP status 404" in error_line(f"{server_url}/no.yaml")
    assert "is larger than 1 MB" in error_line(f"{server_url}/big.yaml")
    assert "could not be fetched" in error_line("http://127.0.0.1:1/x.yaml")
    assert "could not be fetched" in error_line("http://[bad/x.yaml")
