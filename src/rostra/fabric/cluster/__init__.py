"""Members and topics of a cluster as a state machine on one consensus group, the metadata group."""
