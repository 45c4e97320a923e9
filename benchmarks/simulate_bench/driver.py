"""Submits the tasks of a trace to Ray, each when it is due.

    python driver.py TRACE

TRACE is a JSON list of [seconds from the start, number of tasks, how many seconds each runs]. All
tasks need one CPU. Prints a JSON list of when each task was submitted and when it ran.
"""

from __future__ import annotations

import json
import sys
import time

import ray

ray.init(log_to_driver=False, logging_level="ERROR")


@ray.remote(num_cpus=1, max_retries=0)  # type: ignore[untyped-decorator,unused-ignore]
def work(seconds: float) -> float:
    started = time.time()
    time.sleep(seconds)
    return started


begin = time.time()
submitted = []
for at, count, seconds in json.loads(sys.argv[1]):
    time.sleep(max(0.0, begin + at - time.time()))
    submitted += [(time.time(), work.remote(seconds)) for _ in range(count)]
print(json.dumps([(at, ray.get(task)) for at, task in submitted]))
