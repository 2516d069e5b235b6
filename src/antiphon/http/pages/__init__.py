"""The dashboard: an ASGI application. Nothing here is imported before somebody looks at a page."""
