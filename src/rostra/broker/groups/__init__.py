"""Consumer groups (named subscriptions): coordinator, members, assignment and committed positions."""
