"""The listener for Oxia's clients: gRPC over an HTTP/2 of its own, on the node's event loop, over `gateway/`."""
