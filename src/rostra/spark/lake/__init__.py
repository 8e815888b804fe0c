"""Lakes: directories of Parquet files, plain or as Delta tables, to which each batch of a query is added once."""
