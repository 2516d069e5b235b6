"""What listeners see of a node: one interface, which every protocol translates its requests to."""
