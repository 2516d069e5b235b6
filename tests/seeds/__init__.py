"""The seed documents, claim by claim: tests that carry the requirement numbers."""
