"""Fuzzers of all that comes from outside: what listeners get, and what is read from disks (CONTRIBUTING.md)."""
