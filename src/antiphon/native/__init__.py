"""The listener for native clients, and for the other nodes, which use the same port."""
