"""The Python client: async core, sync face."""
