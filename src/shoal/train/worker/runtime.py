"""The session of this process: in the job that started it, or by itself."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from shoal.train import checkpoint, env, messages
from shoal.train.worker.control_link import ControlLink

if TYPE_CHECKING:
    from shoal.train.worker.session import Session

_session: Session | None = None
_link: ControlLink | None = None
_lock = threading.Lock()
_REPORT_INTERVAL_S = 1.0
_reported_at = -_REPORT_INTERVAL_S


def use_link(link: ControlLink) -> None:
    """This process is a worker of a job."""
    global _link
    _link = link


def seconds_left() -> float | None:
    """Until the node of this worker goes away; None if that is not announced."""
    return _link.seconds_left() if _link is not None else None


def report(values: Mapping[str, Any]) -> None:
    """Send figures of the script to its job: numbers, from rank 0 only, at most once a second."""
    global _reported_at
    rank = _session.rank if _session is not None else int(os.environ.get("RANK", "0"))
    now = time.monotonic()
    if _link is None or rank != 0 or now - _reported_at < _REPORT_INTERVAL_S:
        return
    _reported_at = now
    numbers = {name: float(value) for name, value in values.items()}
    finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
    if finite:
        _link.send(messages.Metrics(_link.worker, finite))


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
            checkpoint.before_saving = _session.merge_accumulators
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
