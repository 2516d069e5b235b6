"""Programs that the commands run: a cluster on one machine, demo, benchmarks, verification, drawings for the docs."""
