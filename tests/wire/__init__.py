"""Tests of `antiphon.wire`."""
