"""The flood fabric: a ring of brokers; every record is forwarded to each of them once."""
