"""A registry of images, as small as an engine's pull and its question for sizes allow.

    python -m tests.bootstrap.containers.image_registry PORT CERTIFICATE [USER:PASSWORD]

It has `box:1`, which can be pulled, and `huge:1`, of which only the size is known.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.bootstrap.containers.container_runtimes import SETTINGS, root_directory

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
HUGE = 900 * 2**30


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


class Shelf:
    """Blobs by digest, manifests by name and tag or digest."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], bytes] = {}
        root = root_directory()
        packed = gzip.compress(root, mtime=0)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [SETTINGS["ENV"]], "User": "root"},
            "rootfs": {"type": "layers", "diff_ids": [digest(root)]},
        }
        self._keep("box", config, packed, len(packed))
        self._keep("huge", config, b"a small part of it", HUGE)

    def _keep(self, name: str, config: dict[str, Any], layer: bytes, size: int) -> None:
        setup = json.dumps(config).encode()
        for content in (setup, layer):
            self.blobs[digest(content)] = content
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(setup), "digest": digest(setup)},
            "layers": [{"mediaType": LAYER, "size": size, "digest": digest(layer)}],
        }
        text = json.dumps(manifest).encode()
        self.manifests[name, "1"] = self.manifests[name, digest(text)] = text


class Handler(BaseHTTPRequestHandler):
    shelf = Shelf()
    login = ""

    def do_GET(self) -> None:
        if self.login and self.headers.get("Authorization") != f"Basic {self.login}":
            self._answer(401, b'{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}')
            return
        match self.path.strip("/").split("/"):
            case ["v2"]:
                self._answer(200, b"{}")
            case ["v2", name, "tags", "list"] if (name, "1") in self.shelf.manifests:
                self._answer(200, json.dumps({"name": name, "tags": ["1"]}).encode())
            case ["v2", name, "manifests", tag] if (name, tag) in self.shelf.manifests:
                self._answer(200, self.shelf.manifests[name, tag], MANIFEST)
            case ["v2", _, "blobs", which] if which in self.shelf.blobs:
                self._answer(200, self.shelf.blobs[which], "application/octet-stream")
            case _:
                self._answer(
                    404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}'
                )

    do_HEAD = do_GET

    def _answer(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Content-Digest", digest(content))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="images"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def serve(port: int, certificate: str, login: str = "") -> None:
    Handler.login = base64.b64encode(login.encode()).decode()
    server = ThreadingHTTPServer(("", port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), *sys.argv[2:])
