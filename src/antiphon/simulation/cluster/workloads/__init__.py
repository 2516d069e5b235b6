"""Clients of simulated clusters, and what has to be true of what they were told."""
