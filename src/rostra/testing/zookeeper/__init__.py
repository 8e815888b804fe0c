"""Real ZooKeeper servers on this host, for tests and demos."""
