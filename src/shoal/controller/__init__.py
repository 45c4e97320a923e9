"""The process on the head that observes, plans and acts, and survives being killed."""
