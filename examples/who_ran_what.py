"""A small Ray program: sixty tasks, each of which reports the node it ran on. They are more than
the head can run at once, so an autoscaling cluster scales up."""

import time
from collections import Counter

import ray

ray.init(log_to_driver=False, logging_level="WARNING")


@ray.remote(num_cpus=1)
def where() -> str:
    time.sleep(0.5)
    return ray.util.get_node_ip_address()


counts = Counter(ray.get([where.remote() for _ in range(60)]))
for address, count in sorted(counts.items()):
    print(f"{address:<12} ran {count:2} tasks {'#' * count}")
