"""The simulated world of one seed: its nodes, clients and network, for each fabric."""
