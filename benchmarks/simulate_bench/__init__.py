"""Parts of the simulation benchmark: the same trace with real Ray."""
