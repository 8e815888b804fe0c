"""Pipelines over topics, each a function over DataFrames and a command of `rostra pipeline`."""
