"""Tests of the pure replication protocol."""
