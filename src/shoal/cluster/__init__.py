"""A cluster's spec and its provider, joined. Operations on the laptop and the controller on the
head use the same handle."""
