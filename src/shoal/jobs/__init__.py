"""Code snapshots, environments and Ray jobs."""
