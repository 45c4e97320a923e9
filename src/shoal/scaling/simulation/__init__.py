"""A cluster on a virtual clock: the real planner, simulated machines, and a trace of work."""

from shoal.scaling.simulation.result import Outcome, Sample
from shoal.scaling.simulation.simulator import simulate
from shoal.scaling.simulation.trace import Arrival, World

__all__ = ["Arrival", "Outcome", "Sample", "World", "simulate"]
