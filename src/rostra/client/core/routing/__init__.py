"""Which node owns which partition, and requests that follow the owner."""
