"""A server as the only thing that this process does: settings of the process, signals, the loop, the end."""

import asyncio
import gc
import importlib
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from antiphon import tracing
from antiphon.errors import AntiphonError
from antiphon.node import injected_faults, memory
from antiphon.node.config import NodeConfig
from antiphon.node.injected_faults import FaultyDisk, InjectedFaults
from antiphon.node.logs import bound_output, open_log, set_level
from antiphon.security.exposure import refuse_believing, refuse_exposure
from antiphon.security.private_files import only_private_files, private_folder
from antiphon.server.server import Server, Sockets

SWITCH_INTERVAL_S: Final = 0.0005  # how long the loop may keep the WAL thread from reporting a finished sync
STOP_TIMEOUT_S: Final = 10.0
OUTPUT_EVERY_S: Final = 10.0  # between two looks at what the process has printed


def raise_file_limit() -> int:
    """Let this process open as many files as the system grants it; returns how many those are.

    Connections and the files of many shards are worth more than the usual soft limit of 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # some systems grant less than they say
            structlog.get_logger().warning("file_limit_not_raised", soft=soft, hard=hard, error=str(error))
            return soft
    return hard


def warm_up() -> None:
    """Import what a node needs, once, before the processes of several are forked.

    None of that is garbage: it is not looked through while it is imported, nor in the processes that share it.
    """
    gc.disable()
    for name in (
        "antiphon.server.server",
        "antiphon.kafka.listener",
        "antiphon.http.listener",
        "antiphon.oxia.listener",
        "antiphon.table.state",
        "antiphon.spark.staging.housekeeper",
    ):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()


async def _bounded_output(directory: Path) -> None:
    while True:
        await asyncio.sleep(OUTPUT_EVERY_S)
        bound_output(directory)


def _trace(node_id: int) -> None:
    """Trace as the environment says. A node without what that takes serves all the same."""
    try:
        told = tracing.from_environment(f"antiphon-node-{node_id}")
    except ImportError as error:
        structlog.get_logger().warning("not_tracing", reason=str(error))
    else:
        if told:
            structlog.get_logger().info("tracing", told=told)


async def _serve(config: NodeConfig, sockets: Sockets | None, ready: Callable[[bool], None] | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    faults = InjectedFaults(Path(config.dir)) if injected_faults.wanted() else None
    _trace(config.node_id)
    server = Server(config, sockets, None if faults is None else FaultyDisk(faults), faults)
    server.node.settings.follow(lambda: set_level(server.node.config.log_level))
    if faults is not None:
        loop.add_signal_handler(signal.SIGUSR1, faults.take)
        faults.take(at_start=True)
    printing = loop.create_task(_bounded_output(Path(config.dir)))
    try:
        await server.start()
        stopped = loop.create_task(stop.wait())
        joined = loop.create_task(server.node.joined(config.timings.ready_wait / 1000))
        await asyncio.wait({stopped, joined}, return_when=asyncio.FIRST_COMPLETED)
        is_member = joined.done() and joined.result()
        joined.cancel()
        gc.collect()
        gc.freeze()
        if ready is not None and not stop.is_set():
            ready(is_member)
        await stopped
    finally:
        printing.cancel()
        await asyncio.wait_for(server.stop(), STOP_TIMEOUT_S)


def run_node(
    config: NodeConfig, *, sockets: Sockets | None = None, ready: Callable[[bool], None] | None = None
) -> None:
    """Run a node in this process until SIGTERM or SIGINT; blocking.

    Args:
        config: what it is told.
        sockets: sockets that listen already, by listener (`native`, `kafka`, `http`), used in place of the config's ports.
        ready: called once with True when the node is part of the cluster, with False when it has waited long enough for
            that; it goes on trying.

    Raises:
        PortInUseError, ForeignDirectoryError, DirectoryInUseError, NewerFormatError, InvalidRequestError: it cannot start.
    """
    import uvloop

    refuse_exposure(config.listen_host, config.security)
    refuse_believing(len(config.nodes), config.security)
    only_private_files()
    private_folder(Path(config.dir))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    memory.settle()
    file = open_log(Path(config.dir), config.log_level, config.node_id, config.log)
    raise_file_limit()
    began = time.monotonic()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, sockets, ready))
    except AntiphonError as error:
        structlog.get_logger().error("not_started", error=error.message, after_s=time.monotonic() - began)
        raise
    finally:
        file.close()
