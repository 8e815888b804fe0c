"""`rostra demo`: real node processes are killed while records flow, and no record is lost."""
