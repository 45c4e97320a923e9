"""What the benchmark of the controller is made of."""
