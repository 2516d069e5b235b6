"""Pure cluster coordination: metadata as a state machine, placement, shard election."""
