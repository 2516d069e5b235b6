"""A seeded world that runs the pure parts and checks their invariants."""
