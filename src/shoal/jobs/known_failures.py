"""Failures of users' programs whose cause and fix are known, by what the program printed last."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownFailure:
    why: str
    fix: str


def known_failure(output: str) -> KnownFailure | None:
    """`output` is the end of what the program printed."""
    if "No module named 'pkg_resources'" in output and "sacred" in output:
        return KnownFailure(
            "Sacred needs pkg_resources, which setuptools 82 no longer has",
            "add this line to requirements.txt: setuptools<81",
        )
    return None
