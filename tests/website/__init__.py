"""The pages of the documentation site: those of `docs/` as they are, and the reference, made from the code."""
