"""The session of this process: in the job that started it, or by itself."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

from shoal.train import env, messages
from shoal.train.worker.control_link import ControlLink

if TYPE_CHECKING:
    from shoal.train.worker.session import Session

_session: Session | None = None
_link: ControlLink | None = None
_lock = threading.Lock()


def use_link(link: ControlLink) -> None:
    """This process is a worker of a job."""
    global _link
    _link = link


def existing_session() -> Session | None:
    """The session, if the script has used the library."""
    return _session


def current_session() -> Session:
    """The session. Its first use tells the job that more workers make sense; a script that never
    uses the library does not even import torch because of it."""
    global _session
    with _lock:
        if _session is None:
            from shoal.train.worker.session import Session

            if _link is None:
                _session = Session(worker="0", host="127.0.0.1")
            else:
                _session = Session(_link.worker, os.environ["SHOAL_TRAIN_HOST"], _link)
                _link.send(messages.UsesLibrary(_link.worker))
            env.set_place(_session)
            _stop_on_signals(_session)
        return _session


def _stop_on_signals(session: Session) -> None:
    """The first signal takes a checkpoint at the next batch and exits; the second exits now."""
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if session.stop_requested:
            os._exit(128 + number)
        session.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
