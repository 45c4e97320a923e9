"""Runs the user's script as a worker: python -m shoal.train.worker SCRIPT ARGS..."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from shoal.train import messages
from shoal.train.worker import runtime, torchrun_env
from shoal.train.worker.control_link import ControlLink

_WATCH_S = 0.2


def main() -> NoReturn:
    script, *arguments = sys.argv[1:]
    # Groups that never form are part of the plan; torch would print a stack trace for each.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    link = ControlLink(os.environ["SHOAL_TRAIN_SOCKET"], os.environ["SHOAL_TRAIN_WORKER"])
    host = os.environ["SHOAL_TRAIN_HOST"]
    link.send(messages.Hello(link.worker, os.getpid(), host, torchrun_env.free_port(host)))
    # Importing torch takes seconds, which the other workers and the controller need as well.
    torch_import = _import_torch_if_used(script)
    os.environ.update(torchrun_env.variables(link.await_generation(), link.worker))
    torch_import.join()
    runtime.use_link(link)
    _watch_for_process_group(link)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
        session = runtime.existing_session()
        if session is not None:
            session.finish()
        status = 0
    except SystemExit as end:
        status = _status(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    _exit(status)


def _import_torch_if_used(script: str) -> threading.Thread:
    """In the background. A script that does not use torch does without it."""

    def work() -> None:
        with contextlib.suppress(Exception):  # the script's own import reports the error
            if b"torch" in Path(script).read_bytes():
                importlib.import_module("torch")

    thread = threading.Thread(target=work, name="shoal-import", daemon=True)
    thread.start()
    return thread


def _watch_for_process_group(link: ControlLink) -> None:
    """Tell the job if the script makes a process group without the training library."""

    def watch() -> None:
        while runtime.existing_session() is None:
            distributed = sys.modules.get("torch.distributed")
            is_initialized = getattr(distributed, "is_initialized", None)
            if is_initialized is not None and is_initialized():
                if runtime.existing_session() is None:
                    link.send(messages.UsesProcessGroup(link.worker))
                return
            time.sleep(_WATCH_S)

    threading.Thread(target=watch, name="shoal-watch", daemon=True).start()


def _status(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _exit(status: int) -> NoReturn:
    """As the interpreter exits, but without taking down torch: a thread that still forms a group
    would abort the process there."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
