"""Maps AWS error codes to Shoal's error classes. No other module does that."""

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

_LOG_IN = "log in again (aws sso login, aws configure), or set AWS_PROFILE to another profile"
_POLICY = "request the permissions that shoal iam-policy prints"

# Error class, fix and codes.
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
            # The zone or the market does not offer the type: another one may.
            "Unsupported",
            "UnsupportedOperation",
        ),
    ),
    (
        QuotaError,
        "request a quota increase (Service Quotas, EC2), or choose another type or region",
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
            "InvalidSignatureException",
            "RequestTimeTooSkewed",
        ),
    ),
    (
        DeniedError,
        _POLICY,
        ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException"),
    ),
    (
        # The first spot instance of an account needs a service-linked role.
        DeniedError,
        "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted",),
    ),
    (
        DeniedError,
        "check the account in the AWS console: it is new, blocked, or must accept terms first",
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
            # IAM is still applying an earlier change.
            "EntityTemporarilyUnmodifiable",
        ),
    ),
)
_BY_CODE = {code: (error_class, fix) for error_class, fix, codes in _TABLE for code in codes}

_CREDENTIAL_CODES = {code for _, fix, codes in _TABLE if fix == _LOG_IN for code in codes}

# Prefixes of the codes, not in the table, that mean an invalid request.
_CONFIG_PREFIXES = ("Invalid", "Missing", "Malformed", "Unknown", "ValidationError", "NoSuch")


def error_for(code: str, message: str, operation: str, status: int = 400) -> ShoalError:
    """The error for a failed call: by its code, or by the part of the code before a dot. A code
    that is not in the table is transient if its HTTP status is a server error."""
    known = code if code in _BY_CODE else code.partition(".")[0]
    error_class, fix = _BY_CODE.get(known, (None, ""))
    if error_class is None and status >= 500:
        error_class = TransientError
    if error_class is None:
        is_config = code.startswith(_CONFIG_PREFIXES)
        error_class = ConfigError if is_config else ProviderError
        fix = "correct it in node_config" if is_config and operation == "RunInstances" else ""
    return error_class(f"AWS refused {operation}", why=f"{message.rstrip('.')} ({code})", fix=fix)


def unknown_region(region: str, known: Collection[str]) -> ConfigError:
    close = difflib.get_close_matches(region, known, n=1)
    return ConfigError(
        f"there is no region {region}",
        why="boto3 does not know it; a newer version may",
        fix=f"provider: {{region: {close[0] if close else 'us-west-2'}}}",
    )


def disabled_region(region: str) -> ConfigError:
    return ConfigError(
        f"region {region} is not enabled for this account",
        why="AWS rejects all credentials there until it is enabled",
        fix=f"aws account enable-region --region-name {region}, which takes some minutes, or "
        "choose another region",
    )


def wrong_clock(skew: float, why: str) -> AuthError:
    """The error for credentials that AWS rejects because this machine's clock is wrong by `skew`
    seconds."""
    direction = "ahead" if skew > 0 else "behind"
    return AuthError(
        f"the clock of this machine is {abs(skew) / 60:.0f} minutes {direction}",
        why=f"AWS rejects requests whose time is off by more than 5 minutes: {why}",
        fix="set the clock: sudo timedatectl set-ntp true (on a Mac: sudo sntp -sS time.apple.com)",
    )


def is_credential_error(code: str) -> bool:
    """Whether AWS rejected the caller's credentials rather than the call."""
    return code in _CREDENTIAL_CODES


def no_credentials(why: str) -> AuthError:
    return AuthError(
        "no usable AWS credentials",
        why=why,
        fix="aws configure, or set AWS_PROFILE to a profile of ~/.aws/config",
    )


def no_role_credentials(why: str) -> TransientError:
    return TransientError(
        "no credentials of the instance's role",
        why=f"the instance metadata service did not return any: {why}",
        fix="check that the instance profile of the head still exists",
    )
