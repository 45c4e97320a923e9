"""Scripts that the benchmark `train` runs as workers."""
