"""The HTTP listener: health, metrics, status."""
