"""`make bench-scale`: what things cost as they grow."""
