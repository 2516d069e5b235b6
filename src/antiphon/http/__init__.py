"""The HTTP door: health, metrics, status."""
