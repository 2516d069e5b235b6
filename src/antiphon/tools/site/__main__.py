"""Lay the pages out for a site generator: `python -m antiphon.tools.site ROOT FOLDER` (`make site`)."""

import sys
from pathlib import Path

from antiphon.tools.site.pages import lay_out

if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), Path(sys.argv[2]))
