"""`df.write.format("rostra")` and `writeStream`: DataFrames to topics, exactly once where the fabric offers it."""
