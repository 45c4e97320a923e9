"""Maps Google's errors to Shoal's error classes. No other module does that.

Google reports the same problem in two ways: by a `reason` in the reply to a call, or by a `code` in
an operation that it had accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shoal.core.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    DeniedError,
    ProviderError,
    QuotaError,
    ShoalError,
    TransientError,
)

_LOG_IN = "gcloud auth application-default login"
_QUOTA = "request a quota increase (IAM & Admin, Quotas), or choose another type or region"
_RETRY = "try again in a minute"
# The quotas that apply to all regions together: no other zone or region helps.
_GLOBAL_QUOTA_SUFFIX = "_ALL_REGIONS"

# Error class, fix, and the reasons and codes.
_TABLE: tuple[tuple[type[ShoalError], str, tuple[str, ...]], ...] = (
    (
        CapacityError,
        "",
        (
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "VM_MIN_COUNT_NOT_REACHED",
            # A spot machine that was preempted while it was created.
            "UNSUPPORTED_OPERATION",
        ),
    ),
    (QuotaError, _QUOTA, ("QUOTA_EXCEEDED", "quotaExceeded")),
    (AuthError, _LOG_IN, ("authError", "UNAUTHENTICATED", "invalid_grant")),
    (
        DeniedError,
        "ask an administrator of the project for this permission",
        ("forbidden", "PERMISSION_DENIED", "PERMISSIONS_ERROR"),
    ),
    (
        TransientError,
        _RETRY,
        (
            "rateLimitExceeded",
            "userRateLimitExceeded",
            "backendError",
            "internalError",
            "conditionNotMet",
            "resourceNotReady",
            "RESOURCE_NOT_READY",
            "RESOURCE_OPERATION_RATE_EXCEEDED",
            "RATE_LIMIT_EXCEEDED",
            "INTERNAL_ERROR",
            "ABORTED",
            "UNAVAILABLE",
            "RESOURCE_EXHAUSTED",
        ),
    ),
    (
        ConfigError,
        "correct the file: node_config is passed to Compute Engine unchanged",
        ("invalid", "badRequest", "required", "parseError", "INVALID_ARGUMENT", "invalidParameter"),
    ),
)
_BY_CODE = {code: (error_class, fix) for error_class, fix, codes in _TABLE for code in codes}


def error_for(code: str, message: str, call: str, status: int) -> ShoalError:
    """The error for a reason or code. `call` is what was attempted: the service, the verb, and the
    resource below `projects/`."""
    what = f"Google refused {call}"
    why = f"{message} ({code})" if code else message
    if code in ("accessNotConfigured", "SERVICE_DISABLED") or "has not been used in" in message:
        service, _, resource = call.split(" ", 2)
        project = re.split("[/:]", resource)[0]
        fix = f"gcloud services enable {service}.googleapis.com --project {project}"
        return AuthError(what, why=why, fix=fix)
    if "does not exist in zone" in message:
        # A machine type that another zone may have.
        return CapacityError(what, why=why)
    if code in _BY_CODE:
        error_class, fix = _BY_CODE[code]
        return error_class(what, why=why, fix=fix)
    if status == 401:
        return AuthError(what, why=why, fix=_LOG_IN)
    if status == 429 or status >= 500:
        return TransientError(what, why=why, fix=_RETRY)
    return ProviderError(what, why=why)


def read_reply(body: Any) -> tuple[str, str]:
    """The reason and the message of a refused call, whichever of Google's forms it has."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if isinstance(error, str):  # the form of the token endpoint
        return error, str(body.get("error_description", ""))
    if not isinstance(error, Mapping):
        return "", ""
    entries = error.get("errors") or [{}]
    code = entries[0].get("reason") or error.get("status") or ""
    return str(code), str(error.get("message", ""))


def operation_error(operation: Mapping[str, Any]) -> ShoalError | None:
    """The error of a finished operation; None if it succeeded."""
    errors = (operation.get("error") or {}).get("errors") or ()
    if not errors:
        return None
    status = int(operation.get("httpErrorStatusCode") or 400)
    target = str(operation.get("targetLink", "")).partition("/projects/")[2]
    call = f"compute {operation.get('operationType', 'operation')} {target}"
    return error_for(
        str(errors[0].get("code", "")), str(errors[0].get("message", "")), call, status
    )


def is_global_quota(error: ShoalError) -> bool:
    """Whether a quota of all regions together is reached."""
    return isinstance(error, QuotaError) and _GLOBAL_QUOTA_SUFFIX in error.why
