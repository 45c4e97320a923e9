"""Changes labels of instances. Google accepts a change only with the fingerprint of the labels as
they are, and only one operation at a time for each instance."""

from __future__ import annotations

import logging

from shoal.core.errors import TransientError
from shoal.providers.gcp import names
from shoal.providers.gcp.gcp_client import GcpClient

_log = logging.getLogger(__name__)

_ATTEMPTS = 5


async def set_label(gcp: GcpClient, path: str, key: str, value: str) -> None:
    """Set a label of the instance at `path`. Returns when Google has accepted the change, not when
    it is done. Does nothing for an instance that is gone."""
    for attempt in range(1, _ATTEMPTS + 1):
        record = await gcp.compute("GET", path, ignore_codes=("notFound",))
        current = record.get("labels") or {}
        if not record or current.get(key) == names.label_value(value):
            return
        body = {
            "labels": {**current, **names.as_labels({key: value})},
            "labelFingerprint": record.get("labelFingerprint", ""),
        }
        try:
            await gcp.compute("POST", f"{path}/setLabels", body, ignore_codes=("notFound",))
            return
        except TransientError as error:
            if "conditionNotMet" not in error.why or attempt == _ATTEMPTS:
                raise
            _log.debug("the labels of %s have changed, reading them again", path)
