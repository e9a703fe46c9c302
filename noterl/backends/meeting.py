"""The start of a run: processes meet before a framework connects the processes, and would wait without end."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
import time

from noterl.backends.process_group import ConnectionLost

_HELLO = b"noterl rank "


def is_loopback(host: str) -> bool:
    """Return whether only programs of the same machine can connect to a host.

    Names other than "localhost" are not resolved: on some systems, the name of the machine itself has an address of the
    loopback interface, while other machines reach the machine by that name.
    """
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def choose_loopback_interface() -> None:
    """Let gloo and NCCL listen on the loopback interface, unless the user has chosen an interface.

    By default, gloo listens at the address of the host name, and NCCL prefers every other interface.
    """
    interface = "lo0" if sys.platform == "darwin" else "lo"
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, interface)


def meet(address: str, rank: int, count: int, seconds: float) -> list[int]:
    """Wait until all processes of a run have started.

    The first process listens at its address. The others connect, and the first process answers when all have connected.

    Args:
        address: "host:port" of the first process.
        rank: the number of this process.
        count: the number of processes.
        seconds: to wait for.

    Returns:
        The ranks of the processes that did not start in time; only the first process returns the other ranks.

    Raises:
        ConnectionLost: if the first process cannot listen at its address.
    """
    until = time.monotonic() + seconds
    if rank:
        return [] if _is_answered(address, rank, until) else [0]
    with listener(address) as server:
        return _missing_after(server, count, until)


def listener(address: str) -> socket.socket:
    """Return a socket that listens at an address "host:port". The error names the address, unlike errors of frameworks.

    Raises:
        ConnectionLost: if this process cannot listen there.
    """
    host, _, port = address.rpartition(":")
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # A run that starts right after another one may use the same port.
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host, int(port)))
        server.listen()
    except OSError as error:
        server.close()
        raise ConnectionLost(
            f"this process cannot listen at its address {address}: {error.strerror or error}; choose another port"
        ) from error
    return server


def _missing_after(server: socket.socket, count: int, until: float) -> list[int]:
    """Wait for all other processes, then answer; return the ranks of the processes that have not connected in time."""
    connections: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        while len(connections) < count - 1 and time.monotonic() < until:
            server.settimeout(max(0.01, until - time.monotonic()))
            with contextlib.suppress(OSError, ValueError):
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(1.0)  # a program that connects and sends nothing must not block the others
                message = connection.recv(64)
                other = int(message.removeprefix(_HELLO)) if message.startswith(_HELLO) else 0
                if 0 < other < count:  # otherwise it is not a process of this run
                    connections[other] = connection
        if len(connections) == count - 1:
            for connection in connections.values():
                with contextlib.suppress(OSError):
                    connection.sendall(_HELLO)
    return [rank for rank in range(1, count) if rank not in connections]


def _is_answered(address: str, rank: int, until: float) -> bool:
    """Return whether the first process answers in time that all processes have started."""
    host, _, port = address.rpartition(":")
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0) as connection:
            connection.sendall(_HELLO + str(rank).encode())
            # The answer comes only after the last process has started.
            connection.settimeout(max(0.01, until - time.monotonic()))
            if connection.recv(64) == _HELLO:
                return True
        time.sleep(0.1)  # the first process may not listen yet
    return False
