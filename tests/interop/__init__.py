"""Other projects' own tests and tools, unchanged, against real nodes: `make interop`."""
