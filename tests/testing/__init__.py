"""A cluster inside a test: its faults against real clients, and the pytest plug-in in pytest processes of its own."""
