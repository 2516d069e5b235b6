"""`make bench-peers`: the same work against Antiphon and its peers, in turn, on this machine."""
