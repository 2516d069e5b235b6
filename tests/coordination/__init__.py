"""Tests of the coordinator: the pure parts alone, then with real replicas in a small world of lost messages and crashes."""
