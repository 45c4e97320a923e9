"""Preflight checks of AWS: what would keep a cluster from coming up, found before any launch."""
