"""Polls a spot instance's metadata and prints `termination TIME` or `rebalance` when AWS
announces it.

This file runs on the instance in its own Python 3, however old that is: it must not import
anything of Shoal. It polls every two seconds over one connection, because the notice comes only
two minutes before the instance is terminated.
"""

import calendar
import http.client
import json
import time

_POLL_SECONDS = 2.0
_METADATA_ADDRESS = "169.254.169.254"
_TOKEN_HEADER = "X-aws-ec2-metadata-token"
_TOKEN_TTL_SECONDS = 21600
_INSTANCE_ACTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Metadata:
    """A client of the instance metadata service (IMDSv2). Every failure is raised; call `reset`
    before the next read."""

    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection(_METADATA_ADDRESS, timeout=_POLL_SECONDS)
        self._token = ""

    def read(self, path: str) -> str:
        """The document at a path; empty if there is none."""
        if not self._token:
            ttl = {_TOKEN_HEADER + "-ttl-seconds": str(_TOKEN_TTL_SECONDS)}
            status, self._token = self._request("PUT", "/latest/api/token", ttl)
        status, text = self._request("GET", path, {_TOKEN_HEADER: self._token})
        if status == 401:  # the token has expired
            self._token = ""
        return text if status == 200 else ""

    def reset(self) -> None:
        self._connection.close()
        self._token = ""

    def _request(self, verb: str, path: str, headers: "dict[str, str]") -> "tuple[int, str]":
        self._connection.request(verb, path, headers=headers)
        response = self._connection.getresponse()
        return response.status, response.read().decode()


def notices(metadata: Metadata) -> "list[str]":
    """The current notices, one line each."""
    lines = []
    if metadata.read(_REBALANCE):
        lines.append("rebalance")
    action = metadata.read(_INSTANCE_ACTION)
    if action:
        when = time.strptime(json.loads(action)["time"], "%Y-%m-%dT%H:%M:%SZ")
        lines.append(f"termination {calendar.timegm(when)}")
    return lines


def main() -> None:
    metadata = Metadata()
    printed: set[str] = set()
    while True:
        try:
            lines = notices(metadata)
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            metadata.reset()
            lines = []
        for line in lines:
            if line not in printed:
                print(line, flush=True)
                printed.add(line)
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
