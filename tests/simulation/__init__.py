"""Tests of the simulated world, and by it of the protocol."""
