"""A seeded world that runs the pure parts and checks their invariants after every step.

Everything that could differ between two runs is drawn from the seed: the schedule, what the network does to each
message, when a disk syncs and what a crash takes from it, which node stops when and for how long, what clients ask.
`docs/simulation.md` tells how to run it and how to read what it prints.
"""
