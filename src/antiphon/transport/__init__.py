"""Framed TCP connections of the native protocol, for nodes among each other and for the listener of clients."""
