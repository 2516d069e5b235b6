"""Servers and nodes, as for the Spark source."""

from tests.spark.conftest import antiphon_reader, cluster, db, reader, server

__all__ = ["antiphon_reader", "cluster", "db", "reader", "server"]
