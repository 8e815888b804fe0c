"""What Spark needs on this machine: a session, a Java, a Python."""
