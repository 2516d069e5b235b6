"""What a cluster carries: costs that were measured on a machine, and a model that goes by them (docs/capacity.md)."""
