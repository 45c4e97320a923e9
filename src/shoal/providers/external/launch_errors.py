"""What a node provider class raises, as one of Shoal's error classes: callers act on the class.

`NodeLaunchException` has a category; other exceptions have a code of their cloud's SDK, or only
their text.
"""

from __future__ import annotations

import re

from shoal.core.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    QuotaError,
    ShoalError,
    TransientError,
)

# The first that matches decides. Clouds write their codes as words or in camel case.
_TABLE: tuple[tuple[type[ShoalError], str], ...] = (
    (
        TransientError,
        r"throttl|request.?limit|rate.?(limit )?exceeded|too.?many.?requests|slow.?down|try.?again",
    ),
    (QuotaError, r"quota|limit.?exceeded|max.?spot|limit.?reached|budget"),
    (
        CapacityError,
        r"capacity|exhausted|stock.?out|unavailable.?in|sold.?out|no.?offers|insufficient"
        r"|allocation.?failed|sku.?not.?available|no.?stock|overconstrained",
    ),
    (
        AuthError,
        r"unauthori[sz]ed|auth.?fail|access.?denied|forbidden|permission|credential|expired.?token"
        r"|invalid.?client.?token|signature|authenticat|not.?logged.?in|\b40[13]\b",
    ),
    (
        ConfigError,
        r"invalid|malformed|not.?found|missing|unsupported|validation|unknown|bad.?request"
        r"|unrecognized|keyerror|valueerror|typeerror|assertionerror|notimplemented",
    ),
    (TransientError, r"timeout|timed.?out|connection|reset|unavailable|internal|temporar"),
)
_PATTERNS = tuple((error_class, re.compile(text, re.IGNORECASE)) for error_class, text in _TABLE)
_FIXES: dict[type[ShoalError], str] = {
    AuthError: "check the credentials of the cloud, on this machine and on the head",
    ConfigError: "correct provider and node_config in the cluster file",
    QuotaError: "raise the limit, or choose another node type",
    TransientError: "try again in a minute",
}


def error_for(error: BaseException, what: str) -> ShoalError:
    """The error of a call that raised `error`."""
    if isinstance(error, ShoalError):
        return error
    category = str(getattr(error, "category", "") or "")
    text = str(getattr(error, "description", "") or error) or type(error).__name__
    error_class = _classify(category, _sdk_code(error), f"{type(error).__name__}: {text}")
    why = f"{category}: {text}" if category else f"{type(error).__name__}: {text}"
    return error_class(what, why=why, fix=_FIXES.get(error_class, ""))


def _classify(*texts: str) -> type[ShoalError]:
    """The class of the first text that says anything; a code says more than a sentence."""
    for text in texts:
        for error_class, pattern in _PATTERNS:
            if text and pattern.search(text):
                return error_class
    return TransientError


def _sdk_code(error: BaseException) -> str:
    """The error code of boto3, Azure's, Google's and similar clients."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str((response.get("Error") or {}).get("Code", ""))
    inner = getattr(error, "error", None)
    code = getattr(inner, "code", None) or getattr(error, "code", None)
    return str(code) if isinstance(code, (str, int)) else ""
