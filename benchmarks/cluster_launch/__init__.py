"""Several ways to bring up the same cluster on new hosts, all timed in the same way."""
