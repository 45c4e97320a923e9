"""A stand-in for MongoDB: it accepts every command, stores nothing, and prints what it gets as JSON
lines, after a first one when it listens. Run it with pymongo on the path:

python mongo_stand_in.py PORT
"""

from __future__ import annotations

import json
import socketserver
import struct
import sys
from typing import Any

_QUERY, _REPLY, _MESSAGE = 2004, 1, 2013
_HEADER = struct.Struct("<iiii")
_SERVER = {
    "ismaster": True,
    "isWritablePrimary": True,
    "helloOk": True,
    "minWireVersion": 0,
    "maxWireVersion": 25,
    "maxBsonObjectSize": 1 << 24,
    "maxMessageSizeBytes": 48 << 20,
    "maxWriteBatchSize": 100_000,
}
_NOTHING_FOUND = {"cursor": {"id": 0, "ns": "any.any", "firstBatch": []}}
_ANSWERS: dict[str, dict[str, Any]] = {
    "hello": _SERVER,
    "ismaster": _SERVER,
    "find": _NOTHING_FOUND,
    "listIndexes": _NOTHING_FOUND,
    "insert": {"n": 1},
    "update": {"n": 1, "nModified": 1},
}


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        import bson  # type: ignore[import-not-found]

        while header := self.rfile.read(_HEADER.size):
            length, request, _, kind = _HEADER.unpack(header)
            body = self.rfile.read(length - _HEADER.size)
            if kind == _QUERY:  # how a client greets a server that it does not know
                answer = struct.pack("<iqii", 8, 0, 0, 1) + bson.encode({**_SERVER, "ok": 1.0})
                self._send(request, _REPLY, answer)
                continue
            command = _command(body[4:])
            print(json.dumps(command, default=str), flush=True)
            content = {**_ANSWERS.get(next(iter(command)), {}), "ok": 1.0}
            self._send(request, _MESSAGE, struct.pack("<iB", 0, 0) + bson.encode(content))

    def _send(self, request: int, kind: int, content: bytes) -> None:
        header = _HEADER.pack(_HEADER.size + len(content), 1, request, kind)
        self.wfile.write(header + content)


def _command(sections: bytes) -> dict[str, Any]:
    """The command of a message: a document, and lists of documents that belong to it."""
    import bson

    document: dict[str, Any] = {}
    lists: dict[str, Any] = {}
    while len(sections) > 4:  # a checksum may follow
        kind, sections = sections[0], sections[1:]
        (size,) = struct.unpack_from("<i", sections)
        if kind == 0:
            document = bson.decode(sections[:size])
        else:
            end = sections.index(b"\0", 4)
            lists[sections[4:end].decode()] = bson.decode_all(sections[end + 1 : size])
        sections = sections[size:]
    return {**document, **lists}


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    with _Server(("", int(sys.argv[1])), _Connection) as server:
        print(json.dumps({"listening": sys.argv[1]}), flush=True)
        server.serve_forever()
