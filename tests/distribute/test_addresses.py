"""The processes that `noterl launch` starts on one machine listen on the loopback interface only."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.launching import RANK_RUN, launch

pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]

# Runs a command on a host with another name and another file /etc/hosts: COMMAND HOSTS NAME COMMAND...
RENAMED = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


@pytest.fixture
def before(tmp_path: Path) -> list[str]:
    """Return a command that runs another one where the host name has the address of a network interface.

    gloo and NCCL would listen at this address. On many machines, the host name has an address of the loopback
    interface; the returned command changes it in a namespace. It is empty if the system has no such namespaces.
    """
    outside = [
        address.address
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family == socket.AF_INET and not ipaddress.ip_address(address.address).is_loopback
    ]
    if shutil.which("unshare") is None or not outside:
        return []
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{outside[0]} noterl-test\n")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--mount", "--uts", "sh", "-c", RENAMED, "sh", str(hosts), "noterl-test"]
    can_rename = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if can_rename else []


def test_launched_processes_listen_on_the_loopback_interface_only(before: list[str], tmp_path: Path) -> None:
    code, output = launch("ddp", RANK_RUN, "listen", tmp_path, before=before)
    assert code == 0, output
    for rank in (0, 1):
        addresses = json.loads((tmp_path / f"listen-{rank}.json").read_text())
        # The server of the run, and gloo in each process.
        assert len(addresses) >= 3
        # IPv6 sockets show IPv4 addresses as ::ffff:127.0.0.1.
        plain = [ipaddress.ip_address(address.removeprefix("::ffff:")) for address in addresses]
        assert all(address.is_loopback for address in plain), addresses
