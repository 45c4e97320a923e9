"""`python -m shoal.providers.conformance pkg:Class FILE`: runs the suite and prints its results."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import secrets
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal import spec as specs
from shoal.core.clock import SystemClock
from shoal.core.errors import ConfigError, ShoalError
from shoal.providers import factory_for, register_provider
from shoal.providers.conformance.checks import CheckResult, Suite
from shoal.providers.conformance.environment import Environment
from shoal.providers.protocol import Provider


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    sys.path.insert(0, str(Path.cwd()))
    try:
        return asyncio.run(_run(options))
    except ShoalError as error:
        print(f"{error.label}: {error}", file=sys.stderr)
        if error.fix:
            print(f"fix: {error.fix}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shoal.providers.conformance",
        description="Check that a provider keeps the promises of shoal.providers.protocol. This "
        "launches and terminates real instances of the cluster file, under a cluster name of "
        "their own.",
    )
    parser.add_argument("provider", help="pkg:Class, or a provider type that Shoal knows")
    parser.add_argument("file", help="a cluster file with a worker type of max_workers 2 or more")
    parser.add_argument(
        "--environment",
        metavar="PKG:CLASS",
        help="a subclass of shoal.providers.conformance.environment.Environment, for the checks "
        "that need faults",
    )
    return parser


async def _run(options: argparse.Namespace) -> int:
    if ":" in options.provider:
        factory = _load(options.provider)
        register_provider(_type_in(options.file), factory)
    else:
        factory = factory_for(options.provider)
    spec = specs.load(options.file).launchable()
    spec = replace(spec, cluster_name=f"conformance-{secrets.token_hex(3)}")
    environment = _load(options.environment)() if options.environment else Environment()
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="shoal-conformance-") as home:

        def make() -> Provider:
            provider: Provider = factory(spec, Path(home), clock, lambda _: None, on_head=False)
            return provider

        results = await Suite(make, spec, clock, environment).run(_print)
    failed = sum(result.outcome == "failed" for result in results)
    skipped = sum(result.outcome == "skipped" for result in results)
    print(f"{len(results) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def _print(result: CheckResult) -> None:
    detail = f" ({result.detail})" if result.detail else ""
    print(f"{result.outcome:8}{result.name}{detail}", flush=True)


def _type_in(file: str) -> str:
    """The provider type that a file names: the class under test stands for it."""
    import yaml

    try:
        return str(yaml.safe_load(Path(file).read_text())["provider"]["type"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cannot read provider.type of {file}", why=str(error), fix="name a cluster file"
        ) from None


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cannot load {name}", why=str(error), fix="name a class as package.module:Class"
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
