"""User data for AMIs that were made from a node: removes the state of that node before anything
reads it. With the old lease's lock the boot watchdog would exit, and with the old applied state the
setup would be skipped. Of an AMI that was baked, what setup left is kept."""

from __future__ import annotations

from shoal.remote.runner import quote
from shoal.remote.scripts import read_script


def script(user: str, image_key: str = "") -> str:
    """A boothook, which cloud-init runs before sshd starts. `user` is the login user, `image_key`
    identifies the baked AMI that the instance is launched from, if it is one."""
    arguments = quote(["set", "--", user, image_key])
    body = read_script("shoal.providers.aws.scripts", "remove_old_state.sh")
    return f"#cloud-boothook\n#!/bin/sh\n{arguments}\n{body}"
