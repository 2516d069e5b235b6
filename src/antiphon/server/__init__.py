"""Puts a node together: the node, its listeners, the thread that finishes epochs, the process."""
