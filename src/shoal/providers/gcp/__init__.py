"""Clusters on Google Compute Engine."""
