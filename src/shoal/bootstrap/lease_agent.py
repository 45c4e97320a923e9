"""Lets a machine that has lost its cluster end itself, so that none runs on unnoticed.

A small shell loop on the machine asks the controller now and then, which answers, with the length
of the lease, only while its loop turns. When it has not answered for so long, the machine does
what its provider says. Nobody keeps a list of leases: a thousand workers are a thousand short
questions a minute at most.
"""

from __future__ import annotations

from shoal.bootstrap import controller_request
from shoal.core.node_phase import Role
from shoal.remote.runner import quote

# How often in the length of a lease the controller is asked, and at least how rarely in seconds.
_LOOKS = 5
_LONGEST_PAUSE = 60

# Is there on a machine whose cluster has no controller and is not to get one.
_UNATTENDED = ".shoal/no-controller"

# $0 is the head's address, $1 the controller's port, $2 the GCS's, $3 the node's role, $4 the
# length of the lease in seconds (0: endless) until the controller has said another, $5 what to do
# in the end, $6 how often in a lease it is asked, $7 the longest pause, $8 for how many seconds a
# person may be about to start a controller.
#
# For a machine that has never heard of a controller the head's GCS stands in: for so long as one
# may still come, and for ever where none is meant to or where a firewall is in between, which
# keeps silent where a head without a controller refuses. For ever in all cases would be too long:
# whoever was to start the controller may be dead, and the head's Ray lives on. When it has heard,
# `.shoal/lease` tells a person for how long the last promise was and, by its date, from when. What
# is done in the end may be to end all processes of this node, so it must not be known as one.
_WATCH = rf"""
lock=lease.lock
{controller_request.ONLY_ONE}
{controller_request.ASK}
now() {{ if read -r up _ 2>/dev/null < /proc/uptime; then echo "${{up%%.*}}"; else date +%s; fi; }}
knock() {{ LC_ALL=C timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2" 2>&1; }}
walled_off() {{
  if reply=$(knock "$1" "$2"); then return 1; fi
  case $reply in *refused*) return 1 ;; esac
}}
lease=$4 heard='' last=$(now)
began=$last
stands_in() {{
  [ -e {_UNATTENDED} ] || [ $(($(now) - began)) -lt "$1" ] || walled_off "$2" "$3"
}}
while
  pause=$((lease / $6))
  left=$((last + lease - $(now)))
  [ "$left" -ge "$pause" ] || pause=$left
  [ "$lease" -gt 0 ] && [ "$pause" -le "$7" ] || pause=$7
  [ "$pause" -ge 1 ] || pause=1
  sleep "$pause"
do
  if said=$(printf 'GET /lease/%s HTTP/1.0\r\n\r\n' "$3" | ask "$0" "$1"); then
    case $said in ''|*[!0-9]*) ;; *) lease=$said ;; esac
    heard=yes last=$(now)
    echo "$lease" > .shoal/lease
  elif [ -z "$heard" ] && knock "$0" "$2" > /dev/null && stands_in "$8" "$0" "$1"; then
    last=$(now)
  elif [ "$lease" -gt 0 ] && [ $(($(now) - last)) -ge "$lease" ]; then
    exec env -u RAY_CLOUD_INSTANCE_ID setsid sh -c "$5"
  fi
done
"""


def watch_command(
    gcs_address: str,
    role: Role,
    seconds: float,
    on_lapse: str,
    *,
    hand_seconds: float,
    attended: bool = True,
) -> str:
    """A command that leaves the loop running and returns. The loop is part of the node, and ends
    with the node's Ray when that is stopped; where one runs already, it is left alone. `attended`
    says whether the cluster is to have a controller, which may take `hand_seconds` to come."""
    host, _, port = gcs_address.rpartition(":")
    figures = [str(controller_request.PORT), port, role, str(round(seconds)), on_lapse]
    pace = [str(_LOOKS), str(_LONGEST_PAUSE), str(round(hand_seconds))]
    watch = quote(["sh", "-c", _WATCH, host, *figures, *pace])
    mark = f"rm -f {_UNATTENDED}" if attended else unattended_command()
    return f"{mark}\nsetsid {watch} < /dev/null > /dev/null 2>&1 &"


def unattended_command() -> str:
    """A command that tells a machine, its loop included if that runs, not to wait for a
    controller: the head's GCS is enough."""
    return f"mkdir -p .shoal && : > {_UNATTENDED}"
