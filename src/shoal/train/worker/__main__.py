"""Runs the user's script as a worker: python -m shoal.train.worker SCRIPT ARGS..."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from shoal.train import messages
from shoal.train.worker import runtime
from shoal.train.worker.control_link import ControlLink


def main() -> None:
    script, *arguments = sys.argv[1:]
    link = ControlLink(os.environ["SHOAL_TRAIN_SOCKET"], os.environ["SHOAL_TRAIN_WORKER"])
    link.send(messages.Hello(link.worker, os.getpid(), os.environ["SHOAL_TRAIN_HOST"]))
    link.await_message(messages.Generation)
    runtime.use_link(link)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
    session = runtime.existing_session()
    if session is not None:
        session.finish()


if __name__ == "__main__":
    main()
