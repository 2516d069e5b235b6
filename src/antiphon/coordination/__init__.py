"""Pure cluster coordination: metadata as a state machine, placement of replicas, election of leaders."""
