"""Those who say that they are a node, and do not know the key of the nodes: nobody takes them for one.

They come by both ports. On the nodes' port they send proofs that are made up, that the other side gave itself, or that a
node would give who has another key. What they are told is judged at once.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AntiphonError
from antiphon.model.peer_handshake import PeerChallenge, PeerHello, PeerProof
from antiphon.model.requests import PROTOCOL_VERSION, Failure, Hello, HelloReply
from antiphon.security.peer_key import NONCE_BYTES, PeerKey, Terms
from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload
from antiphon.simulation.cluster.world import CLUSTER_ID, NATIVE_PORT, PEER_PORT
from antiphon.simulation.violation import require
from antiphon.wire.frames import FrameDecoder, MessageDecoder, encode_message

if TYPE_CHECKING:
    from random import Random

    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

PAUSE_S: Final = 0.4
RECEIVE_BYTES: Final = 65_536
OTHER_KEY: Final = PeerKey(b"a key that no node of the cluster has")
_decode: Final = MessageDecoder(PeerChallenge | HelloReply | Failure)


@workload(
    "impostors", 18, Drawn(lambda draw, world: int(world["peer_key"] and draw.random() < 0.5), "proofs", 1)
)
class ImpostorWorkload(Workload):
    """Say that they are a node, at both ports, without the key of the nodes; their proofs are made up, their own, or of
    another key.

    Checked: nobody takes them for a node.
    """

    may_be_killed = False

    def __init__(self, cluster: "SimulatedCluster", name: str = "impostors") -> None:
        super().__init__(cluster, name)
        self.outcomes = {"impostors-refused": 0, "impostors-unheard": 0}

    async def _work(self, process: "Process", _number: int) -> None:
        draw = process.random
        while not self.stopped:
            target, claimed = draw.sample(range(self.cluster.options.nodes), 2)
            by_name = draw.random() < 0.3
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answer = await (_say_so(target, claimed) if by_name else _prove(draw, target, claimed))
            except (OSError, TimeoutError, AntiphonError, EOFError):
                answer = None
            require(
                not isinstance(answer, HelloReply),
                "impostor",
                f"node {target} takes somebody for node {claimed} who does not know the key",
            )
            self.outcomes["impostors-unheard" if answer is None else "impostors-refused"] += 1
            await asyncio.sleep(draw.uniform(0.0, PAUSE_S))

    def check(self) -> None:
        """See `Workload`: all was judged when it came."""


async def _say_so(target: int, claimed: int) -> Any:
    """Connect as nodes do that need no proof."""
    return (await _exchange(target, NATIVE_PORT, Hello(PROTOCOL_VERSION, "node", CLUSTER_ID, claimed, "i")))[
        0
    ]


async def _prove(draw: "Random", target: int, claimed: int) -> Any:
    """Connect as nodes do that know the key."""
    nonce = draw.randbytes(NONCE_BYTES)
    hello = PeerHello(PROTOCOL_VERSION, CLUSTER_ID, claimed, target, "i", nonce)

    def proof(challenge: PeerChallenge) -> PeerProof:
        terms = Terms(CLUSTER_ID, claimed, target, "i", nonce, challenge.nonce)
        others = (draw.randbytes(32), challenge.proof, OTHER_KEY.proof(b"dialer", terms), b"")
        return PeerProof(draw.choice(others))

    return (await _exchange(target, PEER_PORT, hello, proof))[-1]


async def _exchange(target: int, port: int, first: Any, then: Any = None) -> list[Any]:
    """What a node answers; raises OSError, EOFError where it hangs up without a word."""
    reader, writer = await asyncio.open_connection(f"node-{target}", port)
    try:
        writer.writelines(encode_message(1, first))
        answers = [await _answer(reader)]
        if then is not None and isinstance(answers[0], PeerChallenge):
            writer.writelines(encode_message(2, then(answers[0])))
            answers.append(await _answer(reader))
        return answers
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> Any:
    frames = FrameDecoder()
    while True:
        data = await reader.read(RECEIVE_BYTES)
        if not data:
            raise EOFError
        for frame in frames.feed(data):
            return _decode(frame.header)[1]
