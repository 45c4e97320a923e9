"""The steps that make a reachable instance a Ray node, and the pipeline that runs them per node."""
