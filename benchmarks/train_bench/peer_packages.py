"""Packages of the peers, installed into directories that are removed afterwards."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

_INSTALL_S = 300.0
# torchft's other requirement is torch, which must not be replaced.
_TORCHFT = (["opentelemetry-exporter-otlp-proto-http"], ["--no-deps", "torchft==0.2.0"])
# What `ray.train` imports besides the packages that Shoal's development needs.
_OF_RAY_TRAIN = ("pandas", "pyarrow", "tensorboardX")


class Unavailable(Exception):
    """A system cannot be measured here."""


def install_torchft(directory: str) -> None:
    _install(directory, *_TORCHFT)


def install_ray_train(directory: str) -> None:
    """Install what `ray.train` needs and this environment lacks."""
    missing = [name for name in _OF_RAY_TRAIN if importlib.util.find_spec(name) is None]
    if missing:
        _install(directory, ["--no-deps", *missing, "python-dateutil", "pytz", "tzdata", "six"])


def _install(directory: str, *requirements: list[str]) -> None:
    for requirement in requirements:
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", directory]
        try:
            subprocess.run(
                [*install, *requirement], check=True, capture_output=True, timeout=_INSTALL_S
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{requirement[-1]} could not be installed: {error}") from error
