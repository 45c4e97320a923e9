"""Shoal: from the YAML that `ray up` reads to a running Ray cluster, and back to nothing."""

__version__ = "0.1.0"
