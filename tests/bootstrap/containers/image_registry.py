"""A minimal image registry: what `docker pull` and `docker manifest inspect` need.

    python -m tests.bootstrap.containers.image_registry PORT CERTIFICATE [USER:PASSWORD]

It has `box:1`, which can be pulled, and `huge:1`, which has only a manifest.
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


class ImageStore:
    """Blobs by digest, manifests by name and tag or digest."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], bytes] = {}
        root = root_directory()
        compressed = gzip.compress(root, mtime=0)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [SETTINGS["ENV"]], "User": "root"},
            "rootfs": {"type": "layers", "diff_ids": [digest(root)]},
        }
        self._add("box", config, compressed, len(compressed))
        self._add("huge", config, b"not the real layer", HUGE)

    def _add(self, name: str, config: dict[str, Any], layer: bytes, size: int) -> None:
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
    store = ImageStore()
    login = ""

    def do_GET(self) -> None:
        if self.login and self.headers.get("Authorization") != f"Basic {self.login}":
            self._respond(
                401, b'{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}'
            )
            return
        match self.path.strip("/").split("/"):
            case ["v2"]:
                self._respond(200, b"{}")
            case ["v2", name, "tags", "list"] if (name, "1") in self.store.manifests:
                self._respond(200, json.dumps({"name": name, "tags": ["1"]}).encode())
            case ["v2", name, "manifests", tag] if (name, tag) in self.store.manifests:
                self._respond(200, self.store.manifests[name, tag], MANIFEST)
            case ["v2", _, "blobs", blob] if blob in self.store.blobs:
                self._respond(200, self.store.blobs[blob], "application/octet-stream")
            case _:
                self._respond(
                    404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}'
                )

    do_HEAD = do_GET

    def _respond(self, status: int, content: bytes, kind: str = "application/json") -> None:
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
