"""What a child process that owns our terminal needs from us."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_left_to_the_child() -> Iterator[None]:
    """While a child owns the terminal, Ctrl-C is its business: we wait for what it makes of it.

    A handler that does nothing, rather than ignoring the signal, because a child would inherit
    the latter and be deaf to Ctrl-C itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets interrupts, and only it may set them aside
        return
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
