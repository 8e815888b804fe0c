"""Which faults a seed draws, and what brings them about."""
