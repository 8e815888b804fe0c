"""What publishers, nodes and subscribers did, batch by batch, in Parquet files that `rostra pipeline audit` reads."""
