"""What an image's manifest says of the room that the image takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# A machine's own word for its processor, and the registries'.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def layers(manifest: Any) -> list[int]:
    """The packed sizes of an image's layers, from a manifest that docker and podman wrap
    differently; none from what is no manifest."""
    if not isinstance(manifest, Mapping):
        return []
    inner = manifest.get("SchemaV2Manifest") or manifest.get("OCIManifest") or manifest
    return [int(layer.get("size", 0)) for layer in inner.get("layers") or ()]


def room(packed: Sequence[int]) -> int:
    """How much of a disk it takes to get these layers, at the least: each arrives packed and takes
    at least that much unpacked, and the largest is there in both forms for a moment."""
    return sum(packed) + max(packed, default=0)
