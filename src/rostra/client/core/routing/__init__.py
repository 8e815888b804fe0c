"""Which node serves which partition, and requests that follow it there."""
