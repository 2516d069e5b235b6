"""Nodes with an empty namespace `default` of so many shards, for tests in other languages: says a port, ends with its stdin.

python -m tests.interop.oxia_standalone SHARDS
"""

import sys

from tests.interop.oxia_plugin import OxiaContainer


def main() -> None:
    """See the module's text. The port listens on IPv4 and IPv6 names of this machine alike."""
    with OxiaContainer(int(sys.argv[1])) as nodes:
        print(nodes.service_url().rpartition(":")[2], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
