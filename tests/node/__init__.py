"""Tests of `antiphon.node`."""
