"""Hints for invalid credentials: which profiles this machine has, and how to select one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.errors import AuthError, ShoalError

_log = logging.getLogger(__name__)

_KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def with_hint(error: ShoalError, configured: Mapping[str, str]) -> ShoalError:
    """The same error, with a fix that works on this machine. `configured` is the
    `aws_credentials` section of the file."""
    profiles = _profiles()
    used = configured.get("profile_name") or os.environ.get("AWS_PROFILE") or "default"
    why = f"{error.why}; profiles in ~/.aws: {', '.join(profiles) or 'none'}"
    return AuthError(error.what, why=why, fix=_fix(profiles, used, configured))


def _fix(profiles: Mapping[str, Any], used: str, configured: Mapping[str, str]) -> str:
    others = _default_first([name for name in profiles if name != used])
    overriding = [name for name in _KEY_VARIABLES if os.environ.get(name)]
    steps = [f"unset {' '.join(overriding)}"] if overriding else []
    usable = [used] if overriding and used in profiles else others
    if not overriding and _uses_sso(profiles.get(used)):
        steps.append(f"aws sso login --profile {used}")
    elif usable and "profile_name" in configured:
        steps.append(f"provider: {{aws_credentials: {{profile_name: {usable[0]}}}}}")
    elif configured:
        steps.append("remove aws_credentials")
    elif usable:
        steps.append(f"export AWS_PROFILE={usable[0]}")
    else:
        steps.append("aws configure")
    return "\n".join(steps)


def _default_first(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != "default", name))


def _uses_sso(profile: Mapping[str, Any] | None) -> bool:
    return profile is not None and any(key.startswith("sso_") for key in profile)


def _profiles() -> Mapping[str, Any]:
    """The profiles as the AWS tools read them; none if their files are invalid."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    try:
        profiles: Mapping[str, Any] = Session().full_config["profiles"]
        return profiles
    except (BotoCoreError, KeyError) as error:
        _log.debug("could not read the profiles in ~/.aws: %s", error)
        return {}
