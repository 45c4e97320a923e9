"""A worker without torch: follows the protocol, trains nothing, and ends as its script says.

SCRIPT is a Python file that assigns SECONDS (of training), STATUS and TEXT (to print); STATUS
below 0 is a signal, and LIBRARY = False a script that does not use the library.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any


class Worker:
    def __init__(self) -> None:
        self.id = os.environ["SHOAL_TRAIN_WORKER"]
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ["SHOAL_TRAIN_SOCKET"])
        self.buffer = b""
        self.announced: dict[int, Any] = {}
        self.generation = 0
        self.step = 0

    def send(self, kind: str, **message: object) -> None:
        line = json.dumps({"type": kind, "worker": self.id, **message}) + "\n"
        self.socket.sendall(line.encode())

    def receive(self, seconds: float) -> list[Any]:
        if not select.select([self.socket], [], [], seconds)[0]:
            return []
        data = self.socket.recv(1 << 16)
        if not data:
            os._exit(1)  # the agent is gone
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def handle(self, message: Any) -> None:
        kind, number = message["type"], message.get("generation", 0)
        if kind == "generation":
            self.announced[number] = message
            if message["store"] is None:
                self.send("store", generation=number, host="127.0.0.1", port=1)
            elif self.id in message["members"]:
                self.send("formed", generation=number)
        elif kind == "commit":
            if self.id not in self.announced[number]["members"]:
                self.send("left")
                os._exit(0)
            self.generation = number
            self.send("switched", generation=number, step=self.step)
        elif kind == "checkpoint":
            self.send("checkpoint", step=self.step, path="/checkpoint", bytes=1, seconds=0.1)
        elif kind == "stop":
            os._exit(143)

    def train(self) -> None:
        """One step, which rank 0 reports."""
        self.step += 1
        if self.announced[self.generation]["members"][0] == self.id:
            self.send(
                "progress", epoch=0, step=self.step, samples=self.step, pass_size=1000,
                loader="train", batch_size=8, local_batch_size=8, throughput=1.0,
                generation=self.generation,
            )  # fmt: skip


def main() -> None:
    script: dict[str, Any] = {"SECONDS": 0.0, "STATUS": 0, "TEXT": "", "LIBRARY": True}
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    worker = Worker()
    worker.send("hello", pid=os.getpid(), host=os.environ["SHOAL_TRAIN_HOST"])
    while not worker.announced:
        for message in worker.receive(60):
            worker.handle(message)
    exec(Path(sys.argv[1]).read_text(), script)
    if script["TEXT"]:
        print(script["TEXT"], flush=True)
    if script["LIBRARY"]:
        worker.send("uses_library")
        worker.send("prepared")
    deadline = None if script["LIBRARY"] else time.monotonic() + script["SECONDS"]
    while deadline is None or time.monotonic() < deadline:
        for message in worker.receive(0.05):
            worker.handle(message)
        if worker.generation:
            worker.train()
            deadline = deadline or time.monotonic() + script["SECONDS"]
    worker.send("note", level="info", text="the last word")
    if script["STATUS"] < 0:
        os.kill(os.getpid(), -script["STATUS"])
    os._exit(script["STATUS"])


if __name__ == "__main__":
    main()
