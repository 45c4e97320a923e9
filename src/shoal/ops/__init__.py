"""What a person can ask for: async functions that emit events and return data."""
