"""The ports that an earlier version is told are below those of outgoing connections, and apart."""

from antiphon.tools import free_ports
from tests.rolling.kept_ports import PEERS_FROM_NATIVE, kept_ports


def test_ports_are_no_outgoing_connections_and_do_not_overlap() -> None:
    words = kept_ports(["--kafka-port", "--native-port", "--http-port"], 3)
    assert words[0::2] == ["--kafka-port", "--native-port", "--http-port"]
    kafka, native, http = (int(word) for word in words[1::2])
    every = [base + node for base in (kafka, native, native + PEERS_FROM_NATIVE, http) for node in range(3)]
    assert len(set(every)) == len(every)
    outgoing_from = int(free_ports.RANGE.read_text().split()[0])
    assert all(free_ports.LOWEST <= port < outgoing_from + PEERS_FROM_NATIVE for port in every)
    assert all(port < outgoing_from for port in (kafka, native, http))
