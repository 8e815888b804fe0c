"""One Raft group over one partition: election, majority commit, membership, leadership transfer, read index.

The names are those of Ongaro's thesis and of etcd, with one difference: an entry is a batch, and its index is the
offset at which it ends (`prev_end`, `last_end`, `match`, `commit`).

| thesis | here |
|---|---|
| currentTerm, votedFor | `RaftGroup.term` (a replica's `epoch`), `RaftGroup.vote` |
| log[], lastLogIndex, lastLogTerm | `LogState`, `LogState.end`, `LogState.last_epoch` |
| commitIndex, lastApplied | `Replica.commit`, `MetadataGroup.applied` |
| nextIndex[], matchIndex[] | `Progress.next`, `Progress.match` |
| AppendEntries prevLogIndex, prevLogTerm | `AppendEntries.prev_end`, `.prev_epoch` |
| InstallSnapshot | `InstallGroupSnapshot`: start again at the leader's log start |
| PreVote, CheckQuorum, ReadIndex | `RequestVote.pre_vote`, `RaftGroup.quorum_deadline_us`, `ReadIndex` |
| leadership transfer | `RaftGroup.transfer_leadership`, `TimeoutNow` |
| cluster configuration entry, learner | `ConfigurationEntry`, `GroupConfig.learners` |
"""
