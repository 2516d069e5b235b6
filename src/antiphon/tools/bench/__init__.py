"""`antiphon bench`: what is measured of replication modes, fleets and Spark."""
