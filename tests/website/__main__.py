"""Lay the pages out for a site generator: `python -m tests.website ROOT FOLDER` (`make site`)."""

import sys
from pathlib import Path

from tests.website.pages import lay_out

if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), Path(sys.argv[2]))
