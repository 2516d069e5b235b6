"""Tests of the Spark source and sink; one Spark session serves the whole run."""
