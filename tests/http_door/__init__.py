"""Tests of `antiphon.http`."""
