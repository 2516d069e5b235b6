"""Tests of `antiphon.table`."""
