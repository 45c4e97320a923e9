"""Every failure a person can meet, as a type the caller can switch on.

An error says what failed, why, and what to do about it. It never prints and never exits:
the command line turns it into words and an exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ShoalError(Exception):
    """The one base. `what` failed, `why`, the `fix`, on which `node`, and the last `output`."""

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
    """What was asked for cannot be right, whoever tries it. Never retried."""

    exit_code = 2
    label = "config"


class ClaimedError(ConfigError):
    """A machine is another cluster's. Another machine may do."""

    label = "taken"


class NotFoundError(ShoalError):
    """The cluster, node or instance that was named does not exist."""

    exit_code = 3
    label = "not found"


class IncompleteError(ShoalError):
    """The operation ended, but not everything it was asked for is there."""

    exit_code = 4
    label = "incomplete"


class ProviderError(ShoalError):
    """A provider said no. The subclass tells what kind of no."""

    exit_code = 5
    label = "provider"


class AuthError(ProviderError):
    """Credentials are missing, wrong, expired, or not allowed to do this. Stop at once."""

    label = "auth"


class DeniedError(AuthError):
    """The credentials are good, and may not do this one thing. Others may still be allowed."""


class QuotaError(ProviderError):
    """An account limit is in the way. Another type or region may do."""

    label = "quota"


class CapacityError(ProviderError):
    """The provider has none left just now. Another zone, type or market may do."""

    label = "capacity"


class TransientError(ProviderError):
    """Likely to pass: a throttle, a reset connection, a service that is restarting. Back off."""

    label = "transient"


class SetupError(ShoalError):
    """A machine is there, but making it a Ray node failed."""

    exit_code = 6
    label = "setup"


class UnreachableError(SetupError):
    """No connection to a machine that should be there."""

    label = "unreachable"
