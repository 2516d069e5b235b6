"""Staged epochs: rows wait in the topic `__staged` until one conditional row commits all of them."""
