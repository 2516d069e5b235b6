"""`python -m ...` as Spark calls it, run by `warm_python.py`'s server: only what the streams and the end need is here.

Run as `python -IS warm_python_call.py ADDRESS -m MODULE ...`; without `-m` it is a plain Python.
"""

import marshal
import os
import socket
import sys


def main() -> int:
    """The exit code of the process that the server forks."""
    address, *words = sys.argv[1:]
    if words[0] != "-m":
        os.execv(sys.executable, [sys.executable, *words])
    call = marshal.dumps((words[1:], dict(os.environ), os.getcwd()))
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [len(call).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(call)
        return (server.recv(1) or b"\1")[0]


if __name__ == "__main__":
    os._exit(main())
