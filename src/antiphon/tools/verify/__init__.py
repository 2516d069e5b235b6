"""`antiphon verify`: load on a cluster while it is hurt, and what its history must show afterwards."""
