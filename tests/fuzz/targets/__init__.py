"""The targets of the fuzzers. Each module is imported when its target is made, so that it can be instrumented first."""
