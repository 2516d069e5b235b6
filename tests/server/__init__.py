"""Tests of `antiphon.server`."""
