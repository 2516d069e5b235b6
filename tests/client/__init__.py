"""Tests of `antiphon.client`."""
