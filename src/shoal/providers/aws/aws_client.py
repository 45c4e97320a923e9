"""The AWS client: boto3 calls in threads, with retries, paging, caching and Shoal's errors.

A call is retried after a throttle, an internal error or a lost connection, up to a deadline. So
everything called through here must be safe to repeat: creating calls carry a token or a name, and
"already exists" and "already deleted" are not errors.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, TypeVar

from shoal.core.backoff import backoff_delays
from shoal.core.clock import Clock
from shoal.core.concurrency import TtlCache
from shoal.core.errors import ConfigError, ShoalError, TransientError
from shoal.providers.aws import credential_hints, error_codes

T = TypeVar("T")

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 90.0
_FIRST_PAUSE_SECONDS = 0.25
_MAX_PAUSE_SECONDS = 8.0
_CONNECT_TIMEOUT_SECONDS = 10
_READ_TIMEOUT_SECONDS = 60
# Services that no operation depends on and that not every network reaches: a thread waiting for
# one of them would delay the exit of the program.
_OPTIONAL_SERVICES = ("pricing", "service-quotas")
_OPTIONAL_TIMEOUT_SECONDS = 4
# How long lookups that hardly ever change (subnets, images, instance types) stay cached.
_CACHE_SECONDS = 300.0
# AWS rejects requests that are older, or newer, than this.
_MAX_SKEW_SECONDS = 240.0
_OLDEST_REGION = "us-east-1"
# EC2's limit for all filters of a call together.
_MAX_FILTER_VALUES = 200


@cache
def models() -> Any:
    """botocore's service models. Reading them is most of the work of creating a client, so one
    loader serves all accounts and regions."""
    from botocore.loaders import create_loader

    return create_loader()


@cache
def regions() -> frozenset[str]:
    """The regions boto3 knows. A region that does not exist has no endpoint to ask."""
    partitions = models().load_data("endpoints")["partitions"]
    return frozenset(region for partition in partitions for region in partition["regions"])


@cache
def partition(region: str) -> tuple[str, str]:
    """The name and the DNS suffix of the partition of a region. `*` (every region) means the
    standard partition."""
    standard = ("aws", "amazonaws.com")
    if region == "*":
        return standard
    for entry in models().load_data("endpoints")["partitions"]:
        if region in entry["regions"]:
            return str(entry["partition"]), str(entry["dnsSuffix"])
    return standard


def region_of(settings: Mapping[str, Any]) -> str:
    """The region that the provider section of a file names, or else the environment."""
    from_environment = (os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
    region = settings.get("region") or next(filter(None, from_environment), None)
    if not region:
        raise ConfigError(
            "no AWS region",
            why="neither provider.region nor AWS_REGION is set",
            fix="set it in the file: provider: {type: aws, region: us-west-2}",
        )
    return str(region)


def split_filters(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arguments of a listing, once for each part of its longest filter that AWS accepts."""
    filters = list(params.get("Filters") or ())
    # The filters of the price list have one value each.
    counts = [len(entry.get("Values", ())) for entry in filters]
    if sum(counts) <= _MAX_FILTER_VALUES:
        return [dict(params)]
    longest = filters[counts.index(max(counts))]
    others = [entry for entry in filters if entry is not longest]
    size = max(1, _MAX_FILTER_VALUES - sum(counts) + max(counts))
    values = longest["Values"]
    return [
        {**params, "Filters": [*others, {**longest, "Values": values[start : start + size]}]}
        for start in range(0, len(values), size)
    ]


def _clock_skew(date: str, now: float) -> float:
    """How many seconds `now` is ahead of the date of an HTTP response; 0 if it has none."""
    try:
        return now - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return 0.0


@dataclass(frozen=True)
class _Failure:
    """A failed request: AWS's error code, empty if there is none, and Shoal's error for it."""

    code: str
    error: ShoalError


class AwsClient:
    """An account in one region. `credentials` are arguments of boto3's Session; when they are
    empty, boto3 uses its default credential chain. With `from_role` that finds those of the
    instance's role; the metadata service that has them may be silent for a while."""

    def __init__(
        self,
        region: str,
        clock: Clock,
        credentials: Mapping[str, str] | None = None,
        *,
        from_role: bool = False,
    ) -> None:
        self.region = region
        self.clock = clock
        self._from_role = from_role
        self._credentials = dict(credentials or {})
        self._client_lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._cache = TtlCache(clock, _CACHE_SECONDS)
        self._other_regions: dict[str, AwsClient] = {}

    def in_region(self, region: str) -> AwsClient:
        """A client for the same account in another region."""
        if region == self.region:
            return self
        if region not in self._other_regions:
            self._other_regions[region] = AwsClient(
                region, self.clock, self._credentials, from_role=self._from_role
            )
        return self._other_regions[region]

    async def cached(self, key: str, load: Callable[[], Awaitable[T]]) -> T:
        """The result of `load`, which runs once per key and is shared with all callers for some
        minutes: several parts of one command need the same lookup."""
        return await self._cache.get_or_load(key, load)

    async def call(
        self,
        service: str,
        operation: str,
        /,
        *,
        ignore_codes: Collection[str] = (),
        retry_codes: Collection[str] = (),
        **params: Any,
    ) -> dict[str, Any]:
        """Make a call and return its response; an empty one when it failed with a code among
        `ignore_codes`. `retry_codes` are codes, or parts of messages, that AWS uses for a resource
        which was created a moment ago and has not propagated yet: these failures are retried."""

        def request(client: Any) -> dict[str, Any]:
            response: dict[str, Any] = getattr(client, operation)(**params)
            return response

        response = await self._retry(service, operation, request, ignore_codes, retry_codes)
        return {} if response is None else response

    async def paginate(self, service: str, operation: str, key: str, **params: Any) -> list[Any]:
        """The items that a listing has under `key`, from all pages. A filter with more values than
        AWS accepts in one call is split over several calls."""

        def request(client: Any) -> list[Any]:
            return [
                item
                for part in split_filters(params)
                for page in client.get_paginator(operation).paginate(**part)
                for item in page[key]
            ]

        return await self._retry(service, operation, request) or []

    async def _retry(
        self,
        service: str,
        operation: str,
        request: Callable[[Any], T],
        ignore_codes: Collection[str] = (),
        retry_codes: Collection[str] = (),
    ) -> T | None:
        """The result of `request`; None when it failed with an ignored code."""
        deadline = self.clock.monotonic() + _RETRY_SECONDS
        for delay in backoff_delays(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, jitter=(0.5, 1.0)):
            result = await asyncio.to_thread(self._attempt, service, operation, request)
            if not isinstance(result, _Failure):
                return result
            error = result.error
            if result.code in ignore_codes:
                _log.debug("%s: ignored %s", operation, result.code)
                return None
            is_retryable = isinstance(error, TransientError) or any(
                code in error.why for code in retry_codes
            )
            if not is_retryable or self.clock.monotonic() + delay > deadline:
                _log.info("%s in %s failed: %s", operation, self.region, error.why)
                raise error
            _log.info("retrying %s in %.1f s: %s", operation, delay, error.why)
            await self.clock.sleep(delay)
        raise AssertionError("the delays are endless")

    def _attempt(self, service: str, operation: str, request: Callable[[Any], T]) -> T | _Failure:
        """One attempt of a request. Runs in a thread."""
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        if self.region not in regions():
            # There is no endpoint, so a retry would not help.
            return _Failure("", error_codes.unknown_region(self.region, regions()))
        try:
            client = self._client(service)
            name = str(client.meta.method_to_api_mapping[operation])
            return request(client)
        except exceptions.ClientError as error:
            code = str(error.response["Error"].get("Code", ""))
            message = str(error.response["Error"].get("Message", ""))
            status = int(error.response["ResponseMetadata"].get("HTTPStatusCode", 400))
            refusal = error_codes.error_for(code, message, name, status)
            if error_codes.is_credential_error(code):
                self._forget_credentials()
                headers = error.response["ResponseMetadata"].get("HTTPHeaders") or {}
                skew = _clock_skew(str(headers.get("date", "")), self.clock.now())
                if abs(skew) > _MAX_SKEW_SECONDS:
                    return _Failure(code, error_codes.wrong_clock(skew, refusal.why))
                if self._is_disabled():
                    return _Failure(code, error_codes.disabled_region(self.region))
                refusal = credential_hints.with_hint(refusal, self._credentials)
            return _Failure(code, refusal)
        except exceptions.ParamValidationError as error:
            return _Failure(
                "",
                ConfigError(
                    f"invalid parameters for {name}",
                    why="; ".join(str(error).splitlines()[1:]) or str(error),
                    fix="correct node_config: it is passed to boto3 unchanged",
                ),
            )
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
            exceptions.ProfileNotFound,
            exceptions.TokenRetrievalError,
            exceptions.UnauthorizedSSOTokenError,
            exceptions.SSOTokenLoadError,
        ) as error:
            self._forget_credentials()
            if self._from_role:
                return _Failure("", error_codes.no_role_credentials(str(error)))
            no_credentials = error_codes.no_credentials(str(error))
            return _Failure("", credential_hints.with_hint(no_credentials, self._credentials))
        except (
            exceptions.HTTPClientError,
            exceptions.ConnectionError,
            ResponseParserError,
        ) as error:
            return _Failure(
                "",
                TransientError(
                    "could not reach AWS", why=str(error), fix="check this machine's network"
                ),
            )
        except exceptions.BotoCoreError as error:
            return _Failure("", ConfigError("boto3 could not make the request", why=str(error)))

    def _forget_credentials(self) -> None:
        """Have the next call look for credentials again: a client keeps those that it was created
        with, and so it keeps having none."""
        with self._client_lock:
            self._session = None
            self._clients = {}

    def _is_disabled(self) -> bool:
        """Whether the account has not enabled this region, where AWS then rejects all credentials.
        Every account can ask in the oldest region."""
        from botocore.exceptions import BotoCoreError, ClientError

        if self.region == _OLDEST_REGION or partition(self.region)[0] != "aws":
            return False
        try:
            oldest = self.in_region(_OLDEST_REGION)._client("ec2")
            response = oldest.describe_regions(RegionNames=[self.region], AllRegions=True)
            return bool(response["Regions"][0]["OptInStatus"] == "not-opted-in")
        except (BotoCoreError, ClientError, LookupError) as error:
            _log.debug("could not check whether %s is enabled: %s", self.region, error)
            return False

    def _client(self, service: str) -> Any:
        """The boto3 client of a service. Creating one is not thread-safe; using one is, also while
        another is being created."""
        if known := self._clients.get(service):
            return known
        import boto3
        import botocore.session
        from botocore.config import Config

        with self._client_lock:
            if self._session is None:
                core = botocore.session.get_session()
                core.register_component("data_loader", models())
                self._session = boto3.Session(
                    botocore_session=core, region_name=self.region, **self._credentials
                )
            if service not in self._clients:
                is_optional = service in _OPTIONAL_SERVICES
                config = Config(
                    # boto3's own retries have no deadline, and they repeat a capacity error,
                    # which AWS reports with the HTTP status of an internal error.
                    retries={"total_max_attempts": 1},
                    connect_timeout=(
                        _OPTIONAL_TIMEOUT_SECONDS if is_optional else _CONNECT_TIMEOUT_SECONDS
                    ),
                    read_timeout=(
                        _OPTIONAL_TIMEOUT_SECONDS if is_optional else _READ_TIMEOUT_SECONDS
                    ),
                    max_pool_connections=32,
                )
                self._clients[service] = self._session.client(service, config=config)
            return self._clients[service]
