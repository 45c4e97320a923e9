"""Parts of the planner benchmark: clusters, workloads, Ray's scheduler, and two price bounds."""
