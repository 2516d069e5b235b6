"""Settings of the whole test run."""

from hypothesis import HealthCheck, settings

# Time-outs are pytest's; how long one example takes on a busy machine says nothing about right or wrong.
settings.register_profile("antiphon", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("antiphon")
