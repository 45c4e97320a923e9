"""Calls to AWS: boto3 in threads, refusals as our errors, and patience with what passes.

A call is repeated after a throttle, an internal error or a lost connection, until its patience
ends. So everything called through here must be safe to repeat: creations carry a token or a
name, and what is already there or already gone is not an error.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache
from typing import Any, TypeVar

from shoal.core.backoff import backoff_delays
from shoal.core.clock import Clock
from shoal.core.concurrency import TtlCache
from shoal.core.errors import ConfigError, ShoalError, TransientError
from shoal.providers.aws import credential_hints as logins
from shoal.providers.aws import error_codes

T = TypeVar("T")

_PATIENCE_SECONDS = 90.0
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 8.0
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
# Services that are asked only to be helpful, and not every network reaches: a thread that waits for
# one of them would hold up the end of the program.
_HELPFUL = ("pricing", "service-quotas")
_SOON_SECONDS = 4
# For how long what hardly changes (subnets, images, types) is taken to be as it was seen.
_KNOWN_SECONDS = 300.0


@cache
def models() -> Any:
    """botocore's descriptions of AWS's services. Reading them is most of the work of making a
    client, so it is done once for all accounts and regions."""
    from botocore.loaders import create_loader

    return create_loader()


@cache
def regions() -> frozenset[str]:
    """As boto3 knows them: a region that does not exist cannot be asked whether it does."""
    partitions = models().load_data("endpoints")["partitions"]
    return frozenset(region for partition in partitions for region in partition["regions"])


@cache
def partition(region: str) -> tuple[str, str]:
    """The part of AWS that a region is in, by which its things are named, and how the addresses of
    its services end. Every region, `*`, means those of the part that nearly all are in."""
    everyday = ("aws", "amazonaws.com")
    if region == "*":
        return everyday
    for one in models().load_data("endpoints")["partitions"]:
        if region in one["regions"]:
            return str(one["partition"]), str(one["dnsSuffix"])
    return everyday


class AwsClient:
    """An account in one region. `credentials` is what boto3's Session takes, and usually empty:
    then boto3 looks where the AWS tools look."""

    def __init__(
        self, region: str, clock: Clock, credentials: Mapping[str, str] | None = None
    ) -> None:
        self.region = region
        self.clock = clock
        self._credentials = dict(credentials or {})
        self._making = threading.Lock()
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._lookups = TtlCache(clock, _KNOWN_SECONDS)
        self._others: dict[str, AwsClient] = {}

    def elsewhere(self, region: str) -> AwsClient:
        """The same account in another region."""
        if region == self.region:
            return self
        if region not in self._others:
            self._others[region] = AwsClient(region, self.clock, self._credentials)
        return self._others[region]

    async def once(self, subject: str, look: Callable[[], Awaitable[T]]) -> T:
        """What `look` finds, asked for by the first who wants to know and shared with all others
        for some minutes: several parts of one command need the same."""
        return await self._lookups.get_or_load(subject, look)

    async def call(
        self,
        service: str,
        operation: str,
        /,
        *,
        ignoring: Collection[str] = (),
        not_yet: Collection[str] = (),
        **params: Any,
    ) -> dict[str, Any]:
        """Make a call and return its answer; nothing, when AWS refused it with a code that is
        among `ignoring`. A refusal that has a word of `not_yet` is of something made a moment
        ago, which AWS does not know everywhere yet: it passes, too."""
        deadline = self.clock.monotonic() + _PATIENCE_SECONDS
        for delay in backoff_delays(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=(0.5, 1.0)):
            answer = await asyncio.to_thread(self._once, service, operation, params)
            if isinstance(answer, dict):
                return answer
            code, error = answer
            if code in ignoring:
                return {}
            passes = isinstance(error, TransientError) or any(sign in error.why for sign in not_yet)
            if not passes or self.clock.monotonic() + delay > deadline:
                raise error
            await self.clock.sleep(delay)
        raise AssertionError("the delays are endless")

    async def pages(self, service: str, operation: str, key: str, **params: Any) -> list[Any]:
        """What a listing has under `key`, on all of its pages."""
        found: list[Any] = []
        token: dict[str, str] = {}
        while True:
            page = await self.call(service, operation, **params, **token)
            found += page[key]
            if not page.get("NextToken"):
                return found
            token = {"NextToken": page["NextToken"]}

    def _once(
        self, service: str, operation: str, params: Mapping[str, Any]
    ) -> dict[str, Any] | tuple[str, ShoalError]:
        """Runs in a thread."""
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        if self.region not in regions():
            # Nobody answers there, and waiting would not help.
            return "", error_codes.no_region(self.region, regions())
        try:
            client = self._client(service)
            name = str(client.meta.method_to_api_mapping[operation])
            answer: dict[str, Any] = getattr(client, operation)(**params)
            return answer
        except exceptions.ClientError as error:
            code = str(error.response["Error"].get("Code", ""))
            message = str(error.response["Error"].get("Message", ""))
            status = int(error.response["ResponseMetadata"].get("HTTPStatusCode", 400))
            refusal = error_codes.refusal(code, message, name, status)
            if error_codes.is_of_credentials(code):
                return code, logins.explained(refusal, self._credentials)
            return code, refusal
        except exceptions.ParamValidationError as error:
            return "", ConfigError(
                f"{name} cannot be asked for in this way",
                why="; ".join(str(error).splitlines()[1:]) or str(error),
                fix="correct node_config: it is passed to boto3 as it stands",
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
            return "", logins.explained(error_codes.no_credentials(str(error)), self._credentials)
        except (
            exceptions.HTTPClientError,
            exceptions.ConnectionError,
            ResponseParserError,
        ) as error:
            return "", TransientError(
                "AWS cannot be reached", why=str(error), fix="look at this machine's network"
            )
        except exceptions.BotoCoreError as error:
            return "", ConfigError("AWS cannot be asked", why=str(error))

    def _client(self, service: str) -> Any:
        """Making a client is not safe in two threads at once; using one is, also while another
        is being made, which takes its time."""
        if known := self._clients.get(service):
            return known
        import boto3
        import botocore.session
        from botocore.config import Config

        with self._making:
            if self._session is None:
                core = botocore.session.get_session()
                core.register_component("data_loader", models())
                self._session = boto3.Session(
                    botocore_session=core, region_name=self.region, **self._credentials
                )
            if service not in self._clients:
                config = Config(
                    # boto3's own retries know nothing of deadlines, and repeat a refusal for
                    # want of capacity, since AWS calls that an internal error.
                    retries={"total_max_attempts": 1},
                    connect_timeout=_SOON_SECONDS if service in _HELPFUL else _CONNECT_SECONDS,
                    read_timeout=_SOON_SECONDS if service in _HELPFUL else _READ_SECONDS,
                    max_pool_connections=32,
                )
                self._clients[service] = self._session.client(service, config=config)
            return self._clients[service]
