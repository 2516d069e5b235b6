"""The key-value state machine that a table's log folds into."""
