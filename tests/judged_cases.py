"""Where the public judged cases lie, if they lie anywhere."""

from pathlib import Path

import pytest

JUDGED_CASES = Path(__file__).parent.parent.parent / "shared" / "conformance"

needs_judged_cases = pytest.mark.skipif(
    not JUDGED_CASES.is_dir(), reason="the folder of public judged cases is not beside this checkout"
)


def cases(pattern: str) -> list[Path]:
    """Files of the folder that match, or nothing where it is absent."""
    return sorted(JUDGED_CASES.glob(pattern))
