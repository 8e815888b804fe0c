"""One partition: state derived from its log, delivery to subscribers, retention and compaction."""
