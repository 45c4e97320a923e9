"""A call to a cloud's API and a refusal of it, in words that any cloud has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Call:
    """One request to the cloud's API, as it came in."""

    number: int
    """1 for the first call that this cloud ever saw."""
    service: str
    action: str
    region: str
    access_key: str
    source: str
    """The address that it came from."""
    params: Mapping[str, str] = field(repr=False)
    token: str | None = None
    """What makes a repetition of the call the same call."""


@dataclass(frozen=True)
class Launch:
    """What a call for machines asks for."""

    type: str
    zone: str
    market: str
    at_least: int
    at_most: int


@dataclass(frozen=True)
class ApiError:
    """A refusal in the words of one cloud."""

    code: str
    message: str
    status: int = 400
