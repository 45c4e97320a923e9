"""Watches a spot machine's metadata, and prints `termination` and a time, or `rebalance`, when AWS
says so.

This file runs on the machine itself, by being given to its Python 3, however old that is: it must
not import anything of Shoal's. AWS is asked every other second, over one connection: two minutes
are all that a machine has left when it is told.
"""

import calendar
import http.client
import json
import time

_SECONDS = 2.0
_ADDRESS = "169.254.169.254"
_TOKEN = "X-aws-ec2-metadata-token"
_TOKEN_SECONDS = 21600
_ENDS = "/latest/meta-data/spot/instance-action"
_RISK = "/latest/meta-data/events/recommendations/rebalance"


class Metadata:
    """The metadata service, asked with a session token as it may demand. Any failure is raised, and
    the next question begins anew."""

    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection(_ADDRESS, timeout=_SECONDS)
        self._token = ""

    def read(self, path: str) -> str:
        """What there is at a path; empty if nothing is."""
        if not self._token:
            life = {_TOKEN + "-ttl-seconds": str(_TOKEN_SECONDS)}
            status, self._token = self._ask("PUT", "/latest/api/token", life)
        status, text = self._ask("GET", path, {_TOKEN: self._token})
        if status == 401:  # it was good for some hours
            self._token = ""
        return text if status == 200 else ""

    def forget(self) -> None:
        self._connection.close()
        self._token = ""

    def _ask(self, verb: str, path: str, headers: "dict[str, str]") -> "tuple[int, str]":
        self._connection.request(verb, path, headers=headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read().decode()


def notices(metadata: Metadata) -> "list[str]":
    """What AWS has to say now, as lines."""
    lines = []
    if metadata.read(_RISK):
        lines.append("rebalance")
    told = metadata.read(_ENDS)
    if told:
        when = time.strptime(json.loads(told)["time"], "%Y-%m-%dT%H:%M:%SZ")
        lines.append(f"termination {calendar.timegm(when)}")
    return lines


def main() -> None:
    metadata = Metadata()
    said: set[str] = set()
    while True:
        try:
            now = notices(metadata)
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            metadata.forget()
            now = []
        for line in now:
            if line not in said:
                print(line, flush=True)
                said.add(line)
        time.sleep(_SECONDS)


if __name__ == "__main__":
    main()
