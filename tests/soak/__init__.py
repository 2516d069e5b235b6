"""A cluster under load for a long time: does anything grow, is anything lost? (docs/soak.md)"""
