"""What a fleet is put through: everybody arrives, topics are made, restarts one by one, a rack is lost and returns, a new
coordinator takes over, and all the power goes and returns, so that every shard elects anew at once.
"""

from collections.abc import Callable

from antiphon.simulation.fleet import Fleet, Phase

DOWN_MS = 2_000.0  # how long a restarting node is away
RESTARTING = 20  # nodes of a rolling restart; what one takes does not depend on how many follow
LIMIT_MS = 3_600_000.0

Progress = Callable[[Phase], None]


def exercise(fleet: Fleet, progress: Progress | None = None) -> list[Phase]:
    """Run all parts; calls `progress` after each."""
    for part in (
        _arrive,
        _create,
        _rest,
        _rolling_restart,
        _lost_rack,
        _rack_returns,
        _new_coordinator,
        _all_anew,
    ):
        part(fleet)
        phase = fleet.end()
        if progress is not None:
            progress(phase)
    return fleet.phases


def _arrive(fleet: Fleet) -> None:
    fleet.begin("all nodes register")
    fleet.replace_coordinator()
    fleet.tick()
    for node in fleet.nodes:
        fleet.start_node(node)
    fleet.run_until(lambda: len(fleet.state.nodes) == len(fleet.nodes) and fleet.quiet(), LIMIT_MS)


def _create(fleet: Fleet) -> None:
    fleet.begin("all shards are created")
    fleet.create_topics()
    fleet.run_until(lambda: len(fleet.state.shards) >= fleet.shards and fleet.quiet(), LIMIT_MS)


def _rest(fleet: Fleet) -> None:
    fleet.begin("ten quiet seconds")
    end_ms = fleet.now_ms + 10_000
    fleet.run_until(lambda: fleet.now_ms >= end_ms, LIMIT_MS)


def _rolling_restart(fleet: Fleet) -> None:
    nodes = fleet.nodes[:: max(1, len(fleet.nodes) // RESTARTING)][:RESTARTING]
    fleet.begin(f"rolling restart of {len(nodes)} nodes")
    for node in nodes:
        fleet.stop_node(node, noticed=True)
        fleet.after(DOWN_MS, lambda node=node: fleet.start_node(node))  # type: ignore[misc]
        end_ms = fleet.now_ms + DOWN_MS
        fleet.run_until(lambda end_ms=end_ms: fleet.now_ms > end_ms and fleet.quiet(), LIMIT_MS)  # type: ignore[misc]


def _lost_rack(fleet: Fleet) -> None:
    rack = [node for node in fleet.nodes if node.number % fleet.racks == 0]
    fleet.begin(f"a rack of {len(rack)} nodes loses power")
    for node in rack:
        fleet.stop_node(node, noticed=False)
    lost = {node.number for node in rack}
    fleet.run_until(
        lambda: not any(fleet.state.is_alive(number) for number in lost) and fleet.quiet(), LIMIT_MS
    )


def _rack_returns(fleet: Fleet) -> None:
    rack = [node for node in fleet.nodes if not node.alive]
    fleet.begin("the rack is back")
    for node in rack:
        fleet.start_node(node)

    def all_live() -> bool:
        whole = all(len(record.meta.live) == 3 for record in fleet.state.shards.values())
        return fleet.quiet() and whole

    fleet.run_until(all_live, LIMIT_MS)


def _new_coordinator(fleet: Fleet) -> None:
    fleet.begin("a new coordinator takes over")
    fleet.replace_coordinator()
    fleet.run_until(fleet.quiet, LIMIT_MS)


def _all_anew(fleet: Fleet) -> None:
    fleet.begin("the power of all nodes comes back at once")
    for node in fleet.nodes:
        fleet.stop_node(node, noticed=False)
    fleet.replace_coordinator()
    for node in fleet.nodes:
        fleet.start_node(node)
    fleet.run_until(lambda: fleet.quiet() and not fleet.leaderless, LIMIT_MS)
