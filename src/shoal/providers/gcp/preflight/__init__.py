"""Preflight checks of clusters on Compute Engine."""
