"""Passes on what a provider tells a machine about its own end: an agent on the machine runs what
the provider watches with, and brings every line of it to the controller."""

from __future__ import annotations

from shoal.bootstrap import controller_request
from shoal.ray_runtime.cluster_secrets import TOKEN_PATH
from shoal.remote.runner import quote

# $0 is the head's address, $1 the controller's port, $2 the node's id, $3 what watches. A notice
# that the controller does not take, because it is not there yet or just being replaced, is brought
# to it again every second. The token is read by a shell and stands on no command line.
_AGENT = rf"""
lock=notices.lock
{controller_request.ONLY_ONE}
{controller_request.ASK}
tell() {{
  printf 'POST /notices/%s HTTP/1.0\r\nAuthorization: Bearer %s\r\nContent-Length: %s\r\n\r\n%s' \
    "$3" "$(cat {TOKEN_PATH})" "${{#4}}" "$4" | ask "$1" "$2" > /dev/null
}}
sh -c "$3" | while read -r notice; do
  until tell "$0" "$1" "$2" "$notice"; do sleep 1; done
done
"""


def agent_command(gcs_address: str, node_id: str, watch: str) -> str:
    """A command that leaves the agent running and returns. The agent is part of the node, and ends
    with it; where one runs already, it is left alone."""
    host = controller_request.host_of(gcs_address)
    agent = quote(["sh", "-c", _AGENT, host, str(controller_request.PORT), node_id, watch])
    return f"setsid {agent} < /dev/null > /dev/null 2>&1 &"
