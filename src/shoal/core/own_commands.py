"""How Shoal recognises its own short commands on a node that shares this machine: they must not be
ended together with the node's Ray, which they may be about to stop or to ask."""

from __future__ import annotations

COMMAND_VARIABLE = "SHOAL_COMMAND"
