"""Transactions, whichever protocol clients speak: the coordinator's shell, what it tells and is asked, offsets in them."""
