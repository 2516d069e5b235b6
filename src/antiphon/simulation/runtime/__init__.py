"""A world for whole processes: an event loop in virtual time, a network, processes that can be killed; all from one seed."""
