"""The files in `deploy/`: read as their tools read them, and run."""
