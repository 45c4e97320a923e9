"""A simulated cluster on a virtual clock: the real planner, simulated nodes, a trace of work."""

from shoal.scaling.simulation.result import Sample, SimulationResult
from shoal.scaling.simulation.simulator import simulate
from shoal.scaling.simulation.trace import Arrival, SimulationSettings

__all__ = ["Arrival", "Sample", "SimulationResult", "SimulationSettings", "simulate"]
