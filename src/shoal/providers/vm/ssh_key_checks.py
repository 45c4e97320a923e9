"""Preflight check of the private key that the file names."""

from __future__ import annotations

from shoal.providers.model import Finding
from shoal.providers.vm import ssh_keys
from shoal.remote.private_key import private_key_problem
from shoal.spec.cluster_spec import ClusterSpec


def check_private_key(spec: ClusterSpec) -> list[Finding]:
    """Whether the private key that the file names is one."""
    if spec.auth.ssh_private_key is None:
        return []
    key = ssh_keys.private_key_path(spec.auth)
    problem = private_key_problem(key)
    if problem is None:
        return []
    fix = problem.fix
    if not key.is_file():
        fix = "remove ssh_private_key to have a key generated, or correct the path"
    return [Finding("error", problem.what, problem.why, fix, at=("auth", "ssh_private_key"))]
