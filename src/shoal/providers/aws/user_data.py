"""User data as EC2 accepts it: at most 16 KB, compressed where the text is longer, which cloud-init
reads too."""

from __future__ import annotations

import gzip

from shoal.core.errors import ConfigError

_MAX_BYTES = 16 * 1024
# What Shoal adds to the file's user data: a host key, which does not compress, and a script.
_ADDED_BYTES = 2560


def encode(text: str) -> str | bytes:
    """The argument of RunInstances. Equal texts give equal bytes, since a repeated call must be
    identical."""
    if len(text.encode()) <= _MAX_BYTES:
        return text
    data = gzip.compress(text.encode(), mtime=0)
    if len(data) > _MAX_BYTES:
        raise too_large(len(data))
    return data


def check(text: str) -> None:
    """Raise `ConfigError` if the user data of a file will not fit together with Shoal's."""
    size = len(gzip.compress(text.encode(), mtime=0))
    if size + _ADDED_BYTES > _MAX_BYTES:
        raise too_large(size + _ADDED_BYTES)


def too_large(size: int) -> ConfigError:
    return ConfigError(
        f"the user data takes {size / 1024:.1f} KB compressed",
        why=f"EC2 accepts {_MAX_BYTES // 1024} KB",
        fix="make UserData shorter, or move what it does to initialization_commands",
    )
