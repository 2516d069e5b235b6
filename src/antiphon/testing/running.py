"""A running cluster as a test sees it: addresses, and nodes to be killed, paused, cut off and started again.

Every call returns when it has come about: a killed process has ended, a started node serves, a fault is in force.
"""

import asyncio
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from antiphon.errors import InvalidRequestError, TimedOutError
from antiphon.node import injected_faults
from antiphon.testing.faults import Fault, Tallies, inject, with_entry, with_rule, without_rule
from antiphon.tools.local_cluster import LOOK_S, LocalCluster

ENDED_WITHIN_S: Final = 10.0


class Cluster:
    """See `antiphon.testing.cluster`. `nodes` is empty before the start; its places are the nodes' ids."""

    def __init__(self, nodes: int = 3, directory: Path | None = None) -> None:
        self._count = nodes
        self._directory = directory
        self._running: LocalCluster | None = None
        self._tallies: Tallies | None = None
        self.nodes: list[Node] = []

    def start(self) -> Self:
        """Start every node; returns when all of them serve. Raises AntiphonError."""
        if self._running is not None:
            raise InvalidRequestError("this cluster runs already: make another one with cluster()")
        if self._directory is not None:
            for folder in self._directory.glob("node-*"):
                injected_faults.forget(folder)
        self._running = LocalCluster.start(self._count, self._directory, hurtable=True)
        self.nodes = [Node(self._running, node_id) for node_id in sorted(self._running.nodes)]
        return self

    def stop(self) -> None:
        """Stop every node, and remove the temporary directory. Harmless when done already."""
        running, self._running = self._running, None
        self.nodes = []
        if self._tallies is not None:
            self._tallies.remove()
            self._tallies = None
        if running is not None:
            running.stop()

    # -- where clients connect --------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """For Kafka clients: `host:port` of each node, with commas."""
        return self._started.kafka

    @property
    def servers(self) -> str:
        """For `antiphon.connect` and Spark: `host:port` of each node's native listener, with commas."""
        return self._started.native

    @property
    def http(self) -> str:
        """`host:port` of each node's HTTP listener, with commas; that of one is `nodes[0].http`."""
        return self._started.http

    @property
    def directory(self) -> Path:
        """Where the nodes' data and logs are."""
        return self._started.dir

    @property
    def _started(self) -> LocalCluster:
        if self._running is None:
            raise InvalidRequestError(
                "this cluster does not run: use it inside `with`, or call start() first"
            )
        return self._running

    # -- faults of the Kafka listeners ------------------------------------------------------------------------------

    def fail(self, api: str, code: int | str, times: int = 1, *, node: "Node | int | None" = None) -> Fault:
        """Answer the next `times` requests of an API with an error, and do not carry them out.

        Args:
            api: Kafka's name of it, such as Produce, Fetch, Metadata, FindCoordinator, JoinGroup or OffsetCommit.
            code: Kafka's error, as a number or by its name, such as NOT_LEADER_OR_FOLLOWER. It stands where a broker
                puts it: beside each partition, topic or group of the request, or at the top of the answer. A request
                that names none of these has no place for it, is answered as always and not counted.
            times: how many requests, of all clients and on all nodes together.
            node: only requests to this node.

        Raises:
            InvalidRequestError: there is no such API or code, or no such answer of that API.
        """
        return self._hit("failures", {"api": api, "code": code, "times": times}, node)

    def hang_up(self, api: str, times: int = 1, *, node: "Node | int | None" = None) -> Fault:
        """Carry out the next `times` requests of an API, and end the connection in the middle of each answer.

        The client cannot know whether it was carried out. Arguments and errors are as for `fail`.
        """
        return self._hit("hang_ups", {"api": api, "times": times}, node)

    def delay(self, topic: str, ms: float, *, node: "Node | int | None" = None) -> None:
        """Answer Produce and Fetch requests that name the topic so many ms later than otherwise; 0 ends it.

        They are carried out at once. The answers behind one on the same connection wait for it, too.
        """
        inject(self._chosen(node), with_entry("delays", topic, ms or None))

    def cap(self, api: str, version: int | None, *, node: "Node | int | None" = None) -> None:
        """Serve an API up to this version only, as an older broker does; None: as always.

        ApiVersions tells clients so. A higher version is refused as brokers do: the connection ends, and a higher
        ApiVersions is answered with UNSUPPORTED_VERSION. Clients ask on each new connection only.

        Raises InvalidRequestError for an API or a version that is not served.
        """
        inject(self._chosen(node), with_entry("caps", api, version))

    def _hit(self, kind: str, rule: dict[str, Any], node: "Node | int | None") -> Fault:
        nodes = self._chosen(node)
        self._tallies = self._tallies or Tallies()
        tally = self._tallies.new()
        rule["tally"] = str(tally)
        inject(nodes, with_rule(kind, rule))
        return Fault(rule["times"], tally, lambda: inject(nodes, without_rule(kind, rule)))

    def _chosen(self, node: "Node | int | None") -> "list[Node]":
        there = list(self._started.nodes)
        place = node.id if isinstance(node, Node) else node
        found = [one for one in self.nodes if place is None or one.id == place]
        if not found:
            raise InvalidRequestError(f"there is no node {place}; there are {there}")
        return found

    # -- all of it --------------------------------------------------------------------------------------------------

    @property
    def is_hurt(self) -> bool:
        """Is any fault in force, or a node paused or gone?"""
        return any(node.is_hurt for node in self.nodes)

    def heal(self) -> None:
        """Let all be well again: faults end, paused nodes go on, killed ones start. Returns when every node serves.

        Raises AntiphonError when a node does not start.
        """
        # A node is ready when a majority is: where several are down, each start waits for the others.
        errors: list[BaseException] = []

        def heal(node: Node) -> None:
            try:
                node.heal()
                node.resume()
                node.start()
            except Exception as error:  # noqa: BLE001 - raised below, in the thread of the caller
                errors.append(error)

        hurt = [threading.Thread(target=heal, args=(node,)) for node in self.nodes if node.is_hurt]
        for thread in hurt:
            thread.start()
        for thread in hurt:
            thread.join()
        if errors:
            raise errors[0]

    # -- with and async with ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection(
            (host.removeprefix("[").removesuffix("]"), int(port)), ENDED_WITHIN_S
        ).close()
    except OSError:
        return False
    return True


class Node:
    """One node of a running cluster.

    Attributes:
        id: its number, and its place in `Cluster.nodes`; Kafka's clients see it as the broker's id.
        bootstrap_server, server, http: `host:port` of its Kafka, native and HTTP listener.
        directory: its data and its log.
        listener: what its Kafka listener does wrong, as it was told.
    """

    def __init__(self, cluster: LocalCluster, node_id: int) -> None:
        self._cluster = cluster
        self._paused = False
        self._cut: tuple[int, ...] = ()
        self._disk = "ok"
        self.listener: dict[str, Any] = {}
        self._untold = ""  # the mark of what it was told while it was paused
        self._injecting = threading.Lock()
        started = cluster.nodes[node_id]
        self.id = node_id
        self.bootstrap_server, self.server, self.http = started.kafka, started.native, started.http
        self.directory = started.dir

    def __repr__(self) -> str:
        return f"<Node {self.id}, Kafka on {self.bootstrap_server}, {'up' if self.is_running else 'down'}>"

    @property
    def is_running(self) -> bool:
        """Has it a process, a paused one included?"""
        return self._cluster.is_running(self.id)

    @property
    def is_hurt(self) -> bool:
        """Is a fault of it in force, or is it paused or gone?"""
        told = bool(self._cut or self.listener) or self._disk != "ok"
        return told or self._paused or not self.is_running

    # -- the process ------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL it, as `kill -9` does; returns when the process is gone. Harmless when it is down."""
        if not self.is_running:
            return
        self._cluster.kill(self.id)
        deadline = time.monotonic() + ENDED_WITHIN_S
        addresses = (self.bootstrap_server, self.server, self.http)
        # A process with several threads may be a zombie while its last thread still holds the sockets.
        while self._cluster.is_running(self.id) or any(map(_listens, addresses)):
            if time.monotonic() > deadline:
                raise TimedOutError(f"node {self.id} did not end within {ENDED_WITHIN_S:g} s after SIGKILL")
            time.sleep(LOOK_S)
        self._paused = False

    def pause(self) -> None:
        """SIGSTOP it: its connections stay open and silent, and the other nodes take over."""
        if self.is_running:
            self._cluster.pause(self.id)
            self._paused = True

    def resume(self) -> None:
        """Let it go on after `pause()`. Harmless where it is not paused."""
        if not self._paused:
            return
        self._cluster.resume(self.id)
        self._paused = False
        untold, self._untold = self._untold, ""
        if untold:
            self._cluster.until_taken(self.id, untold)

    def start(self) -> None:
        """Start it after `kill()`, with its data, on the same ports; returns when it serves. Harmless when it is up.

        Its disk is sound and it reaches every node; faults of its Kafka listener go on. Where most nodes are down it
        can only be ready when others are, too: `Cluster.heal()` starts all of them.

        Raises UnavailableError with what the node said when it cannot start.
        """
        if self.is_running:
            return
        self._cut, self._disk, self._untold = (), "ok", ""
        serial = self._cluster.hurt(self.id, listener=self.listener)
        self._cluster.start_node(self.id)
        self._cluster.until_taken(self.id, serial)

    # -- its disk and its network -----------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Nothing can be written any more (ENOSPC) until `heal()`. It serves reads and refuses writes."""
        self.inject(disk="full")

    def break_disk(self) -> None:
        """Syncs fail (EIO): it stops the replicas whose writes it cannot trust. `heal()` starts it again."""
        self.inject(disk="broken")

    def cut_off(self, *others: "Node | int") -> None:
        """Let nothing pass between it and `others`, by default all other nodes. Clients still reach it.

        Another call replaces the nodes; `heal()` ends it. What was on the way comes through then.
        """
        ids = tuple(other.id if isinstance(other, Node) else other for other in others)
        cut = ids or tuple(other for other in self._cluster.nodes if other != self.id)
        wrong = [other for other in cut if other == self.id or other not in self._cluster.nodes]
        if wrong:
            raise InvalidRequestError(
                f"node {self.id} cannot be cut off from {wrong}: name other nodes by id"
            )
        self.inject(cut=cut)

    def heal(self) -> None:
        """End every fault of this node. A broken disk is sound again after a start, so it is killed and started then.

        A node that is paused or down stays that; see `resume()`, `start()`, `Cluster.heal()`.
        """
        was_broken = self._disk == "broken" and self.is_running
        if self._cut or self.listener or self._disk != "ok":
            self.inject(cut=(), disk="ok", listener={})
        if was_broken:
            self.kill()
            self.start()

    def inject(
        self,
        *,
        cut: tuple[int, ...] | None = None,
        disk: str | None = None,
        listener: dict[str, Any] | None = None,
    ) -> None:
        """Change what it suffers from; None: as it is. Returns when it does as told.

        A paused node takes it over when it resumes; one that is down when it starts, as far as it is for its listener.

        Raises InvalidRequestError, with all as before, for what the node refuses.
        """
        with self._injecting:
            before = (self._cut, self._disk, self.listener)
            self._cut = self._cut if cut is None else cut
            self._disk = self._disk if disk is None else disk
            self.listener = self.listener if listener is None else listener
            serial = self._inject()
            if self._paused:
                self._untold = serial
            elif self.is_running:
                try:
                    self._cluster.until_taken(self.id, serial)
                except InvalidRequestError:
                    self._cut, self._disk, self.listener = before
                    self._cluster.until_taken(self.id, self._inject())
                    raise

    def _inject(self) -> str:
        return self._cluster.hurt(self.id, cut=self._cut, disk=self._disk, listener=self.listener)
