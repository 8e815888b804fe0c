"""One node, pure: inputs and time in, effects out. Runtime and simulator drive it."""
