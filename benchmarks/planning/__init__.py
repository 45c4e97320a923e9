"""What the planner's benchmarks share: clusters, workloads, the peer, and two yardsticks."""
