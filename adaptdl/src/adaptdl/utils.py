"""Small helpers that scripts import."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any


def print_exc(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function: its exceptions are printed, for callers that drop them."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception:
            traceback.print_exc()
            raise

    return wrapper
