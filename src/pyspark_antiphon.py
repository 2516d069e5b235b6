"""Spark discovers the data source through this module."""
