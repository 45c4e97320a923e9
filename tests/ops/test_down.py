"""What `down` keeps, from data alone."""

from __future__ import annotations

from dataclasses import replace

from shoal.ops.down import Keep, _kept, _without_minimum
from shoal.providers.model import Instance, State
from tests.specs import cluster

HEAD = Instance("id-head", "c", "head", "head", "head", State.RUNNING, "127.77.0.1", 1.0)
WORKERS = [
    Instance(f"id-{n}", "c", f"w{n}", "worker", "worker", State.RUNNING, "127.77.0.2", 2.0 + n)
    for n in range(2)
]


def test_keeping_the_minimum_of_workers_keeps_the_head() -> None:
    spec = cluster(min_workers=1)
    assert _kept(spec, [HEAD, *WORKERS], Keep(min_workers=True)) == [HEAD, WORKERS[0]]


def test_after_workers_only_the_controller_launches_no_minimum() -> None:
    spec = replace(cluster(min_workers=1))
    assert all(t.min_workers == 0 for t in _without_minimum(spec).node_types.values())
