"""One partition: the state machine of its log, and the leader's view of its replicas."""
