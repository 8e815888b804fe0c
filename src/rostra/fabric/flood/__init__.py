"""A ring of brokers: every publish visits each of them once."""
