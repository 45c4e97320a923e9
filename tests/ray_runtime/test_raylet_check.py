"""Raylets that have ended before the GCS notices."""

from __future__ import annotations

import socket

from shoal.ray_runtime.raylet_check import RayletCheck


def test_a_raylet_whose_port_is_closed_has_ended_and_stays_so() -> None:
    check = RayletCheck()
    with (
        socket.create_server(("127.0.0.1", 0)) as alive,
        socket.create_server(("127.0.0.1", 0)) as s,
    ):
        raylets = {"alive": alive.getsockname()[:2], "ended": s.getsockname()[:2]}
        assert not check.check(raylets)
        s.close()
        assert check.check(raylets)
        assert check.ended == {"ended"}
        assert not check.check({"alive": raylets["alive"]})
        assert check.ended == {"ended"}


def test_a_host_that_does_not_answer_says_nothing_about_its_raylet() -> None:
    check = RayletCheck()
    assert not check.check({"unknown": ("no.such.host.invalid", 1)})
    assert check.ended == frozenset()


def test_a_large_cluster_is_not_checked() -> None:
    assert RayletCheck().is_due(3)
    assert not RayletCheck().is_due(10_000)
