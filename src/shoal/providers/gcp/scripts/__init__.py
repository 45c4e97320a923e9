"""Scripts that run on instances: sent as they are, never imported."""
