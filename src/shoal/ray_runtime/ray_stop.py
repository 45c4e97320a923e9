"""Ends the Ray of one node, and no other that may run on the same machine."""

from __future__ import annotations

from shoal.remote.runner import quote

# $0 is the variable by which the node's processes are known. `ray stop` would end every Ray on
# the machine, takes two seconds, and needs a Ray on the PATH.
SCRIPT = r"""
ours() { grep -lszxF "$0" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | grep -vx $$; }
pids=$(ours)
[ -z "$pids" ] || kill $pids 2>/dev/null
n=0
while [ -n "$(ours)" ] && [ $n -lt 10 ]; do sleep 0.1; n=$((n+1)); done
n=0
while pids=$(ours) && [ -n "$pids" ] && [ $n -lt 50 ]; do
  kill -9 $pids 2>/dev/null
  sleep 0.1
  n=$((n+1))
done
[ -z "$(ours)" ]
"""


def stop_command(instance_id: str) -> str:
    """A command that returns when no process of this node's Ray is left."""
    return quote(["sh", "-c", SCRIPT, f"RAY_CLOUD_INSTANCE_ID={instance_id}"])
