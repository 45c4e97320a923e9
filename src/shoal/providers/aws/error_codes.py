"""What AWS's refusals mean. The only place where its error codes are sorted into our classes."""

from __future__ import annotations

import difflib
from collections.abc import Collection

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

_LOG_IN = "log in again (aws sso login, aws configure), or name another profile in AWS_PROFILE"
_POLICY = "ask for the permissions that shoal iam-policy prints"

# Code, class, and what a person can do about it.
_TABLE: tuple[tuple[type[ShoalError], str, tuple[str, ...]], ...] = (
    (
        CapacityError,
        "",
        (
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "InsufficientCapacity",
            "InsufficientFreeAddressesInSubnet",
            "ReservationCapacityExceeded",
            "UnfulfillableCapacity",
            "SpotMaxPriceTooLow",
            # The type is not offered in the zone, or not in this market: another one may do.
            "Unsupported",
            "UnsupportedOperation",
        ),
    ),
    (
        QuotaError,
        "ask AWS to raise the limit (Service Quotas, EC2), or choose another type or region",
        (
            "VcpuLimitExceeded",
            "InstanceLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "MaxSpotFleetRequestCountExceeded",
            "VolumeLimitExceeded",
            "AddressLimitExceeded",
            "NetworkInterfaceLimitExceeded",
            "SecurityGroupLimitExceeded",
            "ResourceLimitExceeded",
            "LimitExceeded",
        ),
    ),
    (
        AuthError,
        _LOG_IN,
        (
            "AuthFailure",
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
            "InvalidClientTokenId",
            "UnrecognizedClientException",
            "SignatureDoesNotMatch",
            "IncompleteSignature",
            "MissingAuthenticationToken",
        ),
    ),
    (
        DeniedError,
        _POLICY,
        ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException"),
    ),
    (
        # An account's first spot machine needs a role of AWS's own.
        DeniedError,
        "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted",),
    ),
    (
        DeniedError,
        "look at the account in the AWS console: it is new, blocked, or must accept terms first",
        ("Blocked", "PendingVerification", "OptInRequired", "InvalidUserID.NotFound"),
    ),
    (
        TransientError,
        "try again in a minute",
        (
            "RequestLimitExceeded",
            "Throttling",
            "ThrottlingException",
            "ThrottledException",
            "TooManyRequestsException",
            "RequestThrottled",
            "EC2ThrottledException",
            "SlowDown",
            "InternalError",
            "InternalFailure",
            "InternalServerError",
            "ServiceUnavailable",
            "ServiceFailure",
            "Unavailable",
            "ConcurrentModification",
            # IAM's word for a change of its own that is still under way.
            "EntityTemporarilyUnmodifiable",
        ),
    ),
)
_BY_CODE = {code: (kind, fix) for kind, fix, codes in _TABLE for code in codes}

_OF_CREDENTIALS = {code for kind, fix, codes in _TABLE if fix == _LOG_IN for code in codes}

# Codes that are not in the table, by how they begin: what was sent makes no sense to AWS.
_CONFIG_PREFIXES = ("Invalid", "Missing", "Malformed", "Unknown", "ValidationError", "NoSuch")


def refusal(code: str, message: str, operation: str, status: int = 400) -> ShoalError:
    """AWS's answer to a call as one of our errors: by its code, or by what that begins with, up to
    a dot. What is not in the table and is AWS's own fault, by its HTTP status, may pass."""
    known = code if code in _BY_CODE else code.partition(".")[0]
    kind, fix = _BY_CODE.get(known, (None, ""))
    if kind is None and status >= 500:
        kind = TransientError
    if kind is None:
        is_config = code.startswith(_CONFIG_PREFIXES)
        kind = ConfigError if is_config else ProviderError
        fix = "correct it in node_config" if is_config and operation == "RunInstances" else ""
    return kind(f"AWS refused {operation}", why=f"{message.rstrip('.')} ({code})", fix=fix)


def no_region(region: str, known: Collection[str]) -> ConfigError:
    """The error for a region that is not there."""
    close = difflib.get_close_matches(region, known, n=1)
    return ConfigError(
        f"there is no region {region}",
        why="boto3 does not know it; a newer one may",
        fix=f"provider: {{region: {close[0] if close else 'us-west-2'}}}",
    )


def is_of_credentials(code: str) -> bool:
    """Whether AWS refused who called, and not what was called for."""
    return code in _OF_CREDENTIALS


def no_credentials(why: str) -> AuthError:
    """The error for a machine that has nothing to sign a call with."""
    return AuthError(
        "there are no usable AWS credentials",
        why=why,
        fix="aws configure, or set AWS_PROFILE to a profile of ~/.aws/config",
    )
