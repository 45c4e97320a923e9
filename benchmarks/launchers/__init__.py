"""Ways to bring up the same cluster on the same kind of fresh machines, and one watch for all."""
