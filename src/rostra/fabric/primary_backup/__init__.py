"""One partition over `fabric/replication`: a primary orders, and every member of a configuration must have a record."""
