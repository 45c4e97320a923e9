"""Many runs of one script with different parameters, as one Ray job."""
