"""Does the node in this container answer? Exit code 0 or 1; with `ready`: does it take part in all that it holds?

It asks this container's own loopback interface, so whose certificate it is shown does not matter.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request

PORT = os.environ.get("ANTIPHON_HTTP_PORT", "8080")
TIMEOUT_S = 4


def answers(page: str) -> bool:
    """Is the page there, with status 200?"""
    unproven = ssl.create_default_context()
    unproven.check_hostname = False
    unproven.verify_mode = ssl.CERT_NONE
    for scheme in ("https", "http"):
        try:
            with urllib.request.urlopen(f"{scheme}://127.0.0.1:{PORT}{page}", timeout=TIMEOUT_S, context=unproven):
                return True
        except urllib.error.HTTPError:
            return False
        except OSError:
            continue
    return False


if __name__ == "__main__":
    sys.exit(not answers("/readyz" if sys.argv[1:] == ["ready"] else "/livez"))
