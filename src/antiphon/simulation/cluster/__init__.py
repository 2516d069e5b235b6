"""Whole nodes under simulation: unchanged nodes and clients on machines that fail, and what has to hold all the time."""
