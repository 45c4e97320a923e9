"""Machines of one's own: a list of addresses and a key."""
