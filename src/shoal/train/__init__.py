"""Elastic training: the library that a training script imports, and the job that runs it."""
