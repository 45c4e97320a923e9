"""AdaptDL's API for PyTorch."""
