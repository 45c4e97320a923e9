"""Scripts that run on hosts: sent as they are, never imported."""
