"""What kafka-python leaves behind: the socket of a connection that it lost, for the collector of garbage to close.

Python warns of that, wherever it happens to be then. Nodes are other processes in the tests that are marked so.
"""

from typing import Final

import pytest

LEAVES_SOCKETS: Final = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
