"""Waits at a spot instance's metadata server and prints `termination TIME` when Google announces
its preemption.

This file runs on the instance in its own Python 3, however old that is: it must not import
anything of Shoal. The server holds each read until the value changes, so the notice arrives at
once: it comes only 30 seconds before the instance ends.
"""

import http.client
import time

_HOST = "169.254.169.254"
_HEADERS = {"Metadata-Flavor": "Google"}
_PREEMPTED = "/computeMetadata/v1/instance/preempted"
_HOLD_SECONDS = 60
_PAUSE_SECONDS = 1.0
_NOTICE_SECONDS = 30


def read(etag: str) -> "tuple[str, str]":
    """The value and its ETag, as soon as it differs from that of `etag`."""
    connection = http.client.HTTPConnection(_HOST, timeout=_HOLD_SECONDS + 15)
    try:
        query = f"?wait_for_change=true&timeout_sec={_HOLD_SECONDS}&last_etag={etag}"
        connection.request("GET", _PREEMPTED + (query if etag else ""), headers=_HEADERS)
        response = connection.getresponse()
        text = response.read().decode().strip()
        if response.status != 200:
            raise OSError(f"the metadata server answered {response.status}")
        return text, response.getheader("ETag") or ""
    finally:
        connection.close()


def main() -> None:
    etag = ""
    while True:
        try:
            value, etag = read(etag)
        except (OSError, http.client.HTTPException):
            value, etag = "", ""
        if value == "TRUE":
            print(f"termination {int(time.time()) + _NOTICE_SECONDS}", flush=True)
            return
        if not etag:
            time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
