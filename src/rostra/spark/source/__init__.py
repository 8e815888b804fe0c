"""The data source: batch and stream reads of topics."""
