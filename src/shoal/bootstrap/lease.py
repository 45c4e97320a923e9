"""Lets a worker that has lost its cluster end itself, so that no machine runs on unnoticed.

A small shell loop on the worker asks the head's GCS port now and then. When nobody has answered
there for the length of the lease, the machine does what its provider says. Nobody has to renew
anything, so a thousand workers cost their head a thousand short connections a minute at most.
"""

from __future__ import annotations

from shoal.remote.base import quote

# How often in the length of a lease the head is asked, and at least how rarely in seconds.
_LOOKS = 5
_LONGEST_PAUSE = 60

# $0 is the host, $1 the port, $2 the seconds, $3 the pause, $4 what to do in the end. What that is
# may be to end all processes of this node, so it must not be known as one of them.
_WATCH = r"""
last=$(date +%s)
while sleep "$3"; do
  if timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$0" "$1" 2>/dev/null; then
    last=$(date +%s)
  elif [ $(($(date +%s) - last)) -ge "$2" ]; then
    exec env -u RAY_CLOUD_INSTANCE_ID setsid sh -c "$4"
  fi
done
"""


def watch_command(gcs_address: str, seconds: float, on_lapse: str) -> str:
    """A command that leaves the loop running and returns. The loop is part of the node, and ends
    with the node's Ray when that is stopped."""
    host, _, port = gcs_address.rpartition(":")
    pause = max(1, min(round(seconds / _LOOKS), _LONGEST_PAUSE))
    watch = quote(["sh", "-c", _WATCH, host, port, str(round(seconds)), str(pause), on_lapse])
    return f"setsid {watch} < /dev/null > /dev/null 2>&1 &"
