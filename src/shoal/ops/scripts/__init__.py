"""Shell scripts that operations run on nodes."""
