"""What every room uses and that knows nothing of clusters: errors, events, time, files, retries."""
