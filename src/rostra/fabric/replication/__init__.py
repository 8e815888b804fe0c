"""Replication of one partition: a copy of its log, and the followers that the copy's owner feeds.

`Replica` is the port: a subclass says who owns the partition in which *owner epoch* (the fencing number), who is fed,
and up to where the followers' acknowledgements commit. Nothing here knows votes, majorities or configurations. An entry
is a batch; its index is the offset at which it ends (`prev_end`, `match`, `commit`).
"""
