"""How to log in to Google Cloud on this machine."""

from __future__ import annotations

import os

_LOG_IN = "gcloud auth application-default login"
# A key file or login that this variable names is used before all others.
_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


def login() -> str:
    """The commands that give this machine valid credentials."""
    return f"unset {_VARIABLE}\n{_LOG_IN}" if os.environ.get(_VARIABLE) else _LOG_IN
