"""State that survives a restart."""

from shoal.train.checkpoint import (
    State,
    load_state,
    save_all_states,
    save_state,
)

__all__ = [
    "State",
    "load_state",
    "save_all_states",
    "save_state",
]
