"""Tests of `antiphon.security`."""
