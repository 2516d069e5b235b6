"""Mistakes in the product that the tests of the numbered requirements must see (see prove.py)."""
