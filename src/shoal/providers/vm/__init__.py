"""What providers that launch virtual machines share: launches, host keys, waiting, SSH."""
