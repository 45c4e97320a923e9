from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from tests.providers.aws.aws_bed import Bed
from tests.providers.aws.provider_account import Account
from tests.simcloud.cloud import SimCloud
from tests.simcloud.ec2 import ACCESS_KEY

_load_file = JSONFileLoader.load_file


@functools.cache
def _load_once(path: str) -> Any:
    """A model of botocore. Parsing EC2's takes longer than many tests."""
    return _load_file(JSONFileLoader(), path)


JSONFileLoader.load_file = lambda _, path: _load_once(path)


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    """An account with nothing in it, and the file of a head and two workers."""
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop())
        await bed.write()
        yield bed


@pytest.fixture
async def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Account]:
    """An account, for tests of the provider without a laptop."""
    async with SimCloud() as cloud:
        options = cloud.ec2.client_options()
        for name, value in {
            "HOME": str(tmp_path),
            "AWS_ENDPOINT_URL": options["endpoint_url"],
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": options["aws_secret_access_key"],
            "SHOAL_CHECKIP_URL": f"{options['endpoint_url']}/checkip",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        yield Account(cloud, tmp_path)
