"""Submits one Ray task per line of standard input, which names a custom resource that it needs.

    python driver.py [wait]

Prints the time of each submission and, with "wait", the time at which the task ran.
"""

from __future__ import annotations

import sys
import time

import ray

ray.init(log_to_driver=False, logging_level="ERROR")


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator,unused-ignore]
def now() -> float:
    return time.time()


is_waiting = "wait" in sys.argv
for line in sys.stdin:
    submitted = time.time()
    task = now.options(resources={line.strip(): 1}).remote()
    print(submitted, ray.get(task) if is_waiting else 0.0, flush=True)
