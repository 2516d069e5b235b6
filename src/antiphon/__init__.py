"""Antiphon."""
