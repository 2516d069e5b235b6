"""Alert rules, fired by Prometheus' own program."""
