"""Credentials that do not work: which others there are on this machine, and how to choose one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.errors import AuthError, ShoalError

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def explained(error: ShoalError, given: Mapping[str, str]) -> ShoalError:
    """The same error, with what a person can do about it here. `given` is what the file says of
    credentials."""
    profiles = _profiles()
    used = given.get("profile_name") or os.environ.get("AWS_PROFILE") or "default"
    why = f"{error.why}; profiles in ~/.aws: {', '.join(profiles) or 'none'}"
    return AuthError(error.what, why=why, fix=_fix(profiles, used, given))


def _fix(profiles: Mapping[str, Any], used: str, given: Mapping[str, str]) -> str:
    others = _default_first([name for name in profiles if name != used])
    in_the_way = [name for name in _KEYS if os.environ.get(name)]
    steps = [f"unset {' '.join(in_the_way)}"] if in_the_way else []
    usable = [used] if in_the_way and used in profiles else others
    if not in_the_way and _logs_in_by_browser(profiles.get(used)):
        steps.append(f"aws sso login --profile {used}")
    elif usable and "profile_name" in given:
        steps.append(f"provider: {{aws_credentials: {{profile_name: {usable[0]}}}}}")
    elif given:
        steps.append("take aws_credentials out")
    elif usable:
        steps.append(f"export AWS_PROFILE={usable[0]}")
    else:
        steps.append("aws configure")
    return "\n".join(steps)


def _default_first(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != "default", name))


def _logs_in_by_browser(profile: Mapping[str, Any] | None) -> bool:
    return profile is not None and any(key.startswith("sso_") for key in profile)


def _profiles() -> Mapping[str, Any]:
    """As the AWS tools read them; none where their files make no sense."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    try:
        profiles: Mapping[str, Any] = Session().full_config["profiles"]
        return profiles
    except (BotoCoreError, KeyError):
        return {}
