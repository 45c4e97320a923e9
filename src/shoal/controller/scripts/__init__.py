"""Shell scripts that the controller and its client run. Each takes its values as arguments."""
