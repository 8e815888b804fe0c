"""The metadata group: members, topics and replica placement as one replicated state."""
