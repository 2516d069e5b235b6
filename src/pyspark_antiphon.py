"""Lets Spark find `format("antiphon")` by itself: it imports modules named `pyspark_*` and takes their `DefaultSource`."""

from antiphon.spark.source import AntiphonDataSource


class DefaultSource(AntiphonDataSource):
    """The data source; see `antiphon.spark.source`."""
