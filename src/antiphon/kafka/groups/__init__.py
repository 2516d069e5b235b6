"""Consumer groups of the classic protocol: the state machine of a group, its coordinator on a node, committed offsets."""
