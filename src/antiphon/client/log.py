"""What the client tells programs that listen: the logger `antiphon.client` of the standard library, silent by default.

INFO: connections that were made and lost, leaders that changed. DEBUG: tries that failed and why, connections that could
not be made. WARNING: a session that was lost. No record has a password, a token, a key or a value.
"""

import logging
from typing import Final

logger: Final = logging.getLogger("antiphon.client")
logger.addHandler(logging.NullHandler())
