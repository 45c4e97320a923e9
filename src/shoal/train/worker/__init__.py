"""What runs inside a worker process of a training job."""
