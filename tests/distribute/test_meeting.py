"""Processes wait for each other before a framework connects them."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from noterl.backends.meeting import _HELLO, _missing_after, is_loopback, listener, meet
from noterl.backends.process_group import ConnectionLost

pytestmark = pytest.mark.backends("torch")


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def met(address: str, ranks: tuple[int, ...], count: int, seconds: float) -> list[list[int]]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: meet(address, rank, count, seconds), ranks))


def test_all_processes_have_started(address: str) -> None:
    assert met(address, (2, 0, 1), 3, 20.0) == [[], [], []]


def test_missing_processes_are_returned(address: str) -> None:
    with listener(address) as server, socket.create_connection(address.split(":")) as first:
        first.sendall(_HELLO + b"1")
        assert _missing_after(server, 3, time.monotonic() + 0.3) == [2]
    assert meet(address, 1, 2, 0.1) == [0]


def test_other_programs_are_no_processes_of_the_run(address: str) -> None:
    with listener(address) as server:
        for message in (b"1", _HELLO + b"7", _HELLO + b"one", b""):
            with socket.create_connection(address.split(":")) as connection:
                connection.sendall(message)
        assert _missing_after(server, 2, time.monotonic() + 1.0) == [1]


def test_a_port_in_use_is_named(address: str) -> None:
    with listener(address), pytest.raises(ConnectionLost, match=address):
        meet(address, 0, 2, 1.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "localhost", "::1"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


# Other machines must be able to connect to these, also if a name has an address of the loopback interface here.
@pytest.mark.parametrize("host", ["192.0.2.2", "0.0.0.0", "::", "first.cluster", socket.gethostname()])
def test_addresses_for_other_machines(host: str) -> None:
    assert is_loopback(host) == (host == "localhost")
