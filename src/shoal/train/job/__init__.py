"""The job that runs a training script: its controller, the agents on the nodes, and its journal."""
