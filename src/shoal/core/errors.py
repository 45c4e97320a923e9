"""Every failure that a user can see, as a type that callers can switch on.

An error says what failed, why, and how to fix it. It never prints and never exits: the command
line renders it and chooses the exit code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

_CLUSTER_PLACEHOLDER = re.compile(r"\b(shoal(?: [a-z-]+){1,2}) CLUSTER\b")


def fix_for_cluster(fix: str, arguments: str) -> str:
    """The fix with CLUSTER replaced by the command-line arguments that select the cluster; left out
    if there are none."""
    return _CLUSTER_PLACEHOLDER.sub(lambda match: f"{match[1]} {arguments}".rstrip(), fix)


class ShoalError(Exception):
    """The base of all errors: `what` failed, `why`, the `fix`, on which `node`, and the last lines
    of `output`.

    Each line of a fix is a step, or begins with "or" if it is an alternative. A command that can be
    pasted is the whole line, or follows a colon at its end. Where it acts on this cluster it says
    `shoal up CLUSTER`, which `fix_for_cluster` completes.
    """

    exit_code: ClassVar[int] = 1
    label: ClassVar[str] = "error"

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        node: str = "",
        output: Sequence[str] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.node = node
        self.output = tuple(output)

    def __str__(self) -> str:
        text = f"{self.node}: {self.what}" if self.node else self.what
        return f"{text}: {self.why}" if self.why else text


class ConfigError(ShoalError):
    """The configuration or the arguments are invalid. Retrying cannot help."""

    exit_code = 2
    label = "config"


class ClaimedError(ConfigError):
    """A host belongs to another cluster. Another host may work."""

    label = "claimed"


class NotFoundError(ShoalError):
    """The cluster, node or instance that was named does not exist."""

    exit_code = 3
    label = "not found"


class IncompleteError(ShoalError):
    """The operation finished, but part of what was requested is missing."""

    exit_code = 4
    label = "incomplete"


class ProviderError(ShoalError):
    """A provider rejected or failed a request. The subclass says in which way."""

    exit_code = 5
    label = "provider"


class AuthError(ProviderError):
    """Credentials are missing, invalid, expired or lack a permission. Not retried."""

    label = "auth"


class DeniedError(AuthError):
    """The credentials are valid but lack this permission. Other calls may succeed."""


class QuotaError(ProviderError):
    """An account limit is reached. Another instance type or region may work."""

    label = "quota"


class CapacityError(ProviderError):
    """The provider is out of capacity. Another zone, instance type or market may work."""

    label = "capacity"


class TransientError(ProviderError):
    """A temporary failure: throttling, a reset connection, a restart. Retry with backoff."""

    label = "transient"


class SetupError(ShoalError):
    """An instance runs, but bootstrapping it as a Ray node failed."""

    exit_code = 6
    label = "setup"


class UnreachableError(SetupError):
    """An instance that should run does not answer."""

    label = "unreachable"


def as_shoal_error(error: Exception) -> ShoalError:
    """Any exception as an error that a user can see: a file or a deadline as such, the rest as a
    bug in Shoal."""
    if isinstance(error, ShoalError):
        return error
    import asyncio  # the planner, which is pure, needs the errors but no event loop

    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):  # two classes before Python 3.11
        return ShoalError(
            str(error) or "the operation did not end in time", fix="run the same command again"
        )
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return ConfigError(
            f"cannot use {error.filename}",
            why=error.strerror,
            fix="make it usable, or keep Shoal's own files elsewhere: export SHOAL_HOME=/tmp/shoal",
        )
    return ShoalError(
        f"internal error: {type(error).__name__}: {error}",
        why="this is a bug in Shoal",
        fix="run the same command with SHOAL_DEBUG=1 for a stack trace, and please report it",
    )
