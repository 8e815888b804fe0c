"""A model of a coordination service with several servers, for simulated nodes. Tests compare it with a real one."""
