"""Addresses of a model hub: against a stand-in of the HTTP interface, and with the cache of `huggingface_hub`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from noterl import saving
from noterl.saving import FileError, locate

pytestmark = pytest.mark.backend_free

COMMITS = {"main": "1" * 40, "v1": "2" * 40}
# Prints the tree in the file of each address, or the error.
PROGRAM = """
import json, sys
from noterl import saving
for address in sys.argv[1:]:
    try:
        answer = saving.read(saving.locate(address))
    except Exception as error:
        answer = [type(error).__name__, str(error)]
    print(json.dumps(answer))
"""


class Hub(ThreadingHTTPServer):
    """Serves the files of repositories as a model hub does.

    Attributes:
        files: content by repository, revision and name; an int declares so many bytes and sends none.
        requests: the methods and paths of all requests.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[tuple[str, str, str], bytes | int] = {}
        self.requests: list[tuple[str, str]] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        content = self.answer()
        if isinstance(content, bytes):
            self.wfile.write(content)

    def answer(self) -> bytes | int | None:
        self.server.requests.append((self.command, self.path))
        repository, _, resolved = self.path.strip("/").partition("/resolve/")
        revision, _, name = resolved.partition("/")
        revision = next((key for key, commit in COMMITS.items() if commit == revision), revision)
        content = self.server.files.get((repository, revision, name))
        known = any(key[0] == repository for key in self.server.files)
        self.send_response(404 if content is None else 200)
        if content is None:
            code = "RepoNotFound" if not known else "EntryNotFound" if revision in COMMITS else "RevisionNotFound"
            self.send_header("X-Error-Code", code)
            content = b""
        self.send_header("X-Repo-Commit", COMMITS.get(revision, "0" * 40))
        self.send_header("ETag", f'"{abs(hash(content)):040x}"')
        self.send_header("Content-Length", str(content if isinstance(content, int) else len(content)))
        self.end_headers()
        return content


@pytest.fixture
def hub() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def answers(hub: Hub, cache: Path, *addresses: str, **environment: str) -> list[Any]:
    """Return what `PROGRAM` prints in a process whose hub is the stand-in."""
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    variables = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0", **environment}
    command = [sys.executable, "-c", PROGRAM, *addresses]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def agent_bytes(folder: Path, steps: int) -> bytes:
    saving.write(folder / "written.noterl", {"steps": steps})
    return (folder / "written.noterl").read_bytes()


def test_addresses_are_downloaded_and_then_read_from_the_cache(hub: Hub, tmp_path: Path) -> None:
    hub.files[("owner/pole", "main", "agent.noterl")] = agent_bytes(tmp_path, 2)
    hub.files[("owner/pole", "v1", "agent.noterl")] = agent_bytes(tmp_path, 1)
    addresses = ["hub:owner/pole", "hub:owner/pole@v1", "hub:owner/pole@" + COMMITS["v1"]]
    assert answers(hub, tmp_path, *addresses) == [{"steps": 2}, {"steps": 1}, {"steps": 1}]
    assert all(path.endswith("/agent.noterl") for _, path in hub.requests if "/resolve/" in path)
    hub.requests.clear()
    *cached, (kind, message) = answers(hub, tmp_path, *addresses, "hub:owner/other", HF_HUB_OFFLINE="1")
    assert cached == [{"steps": 2}, {"steps": 1}, {"steps": 1}] and hub.requests == []
    assert kind == "OSError" and "cannot download 'hub:owner/other'" in message


def test_hostile_repositories_are_refused(hub: Hub, tmp_path: Path) -> None:
    hub.files[("owner/damaged", "main", "agent.noterl")] = agent_bytes(tmp_path, 1)[:-30]
    hub.files[("owner/pickled", "main", "agent.noterl")] = b"\x80\x04cposix\nsystem\n"
    hub.files[("owner/huge", "main", "agent.noterl")] = 10**15
    hub.files[("owner/outside", "main", "../../agent.noterl")] = b"outside"
    names = ["damaged", "pickled", "huge", "outside", "missing"]
    results = answers(hub, tmp_path, *(f"hub:owner/{name}" for name in names), "hub:owner/huge@v2", "hub:../..")
    damaged, pickled, huge, outside, missing, revision, parent = results
    for kind, message in (damaged, pickled):
        assert kind == "FileError" and "agent.noterl" in message
    assert huge[0] == "OSError" and "1,000,000,000,000,000 bytes" in huge[1]
    assert ("GET", "/owner/huge/resolve/main/agent.noterl") not in hub.requests
    for kind, message in (outside, missing, revision, parent):
        assert kind == "OSError" and message.startswith("cannot download 'hub:")
    assert not any("outside" in path and ".." in path for _, path in hub.requests)
    assert not list(tmp_path.glob("**/agent.noterl.incomplete"))


@pytest.mark.parametrize("address", ["hub:", "hub:name", "hub:a/b/c", "hub:a/b@", "hub:a b/c", "hub:a/b\n", "hub:/b"])
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="hub:OWNER/NAME@REVISION"):
        locate(address)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'hub:a/b needs an extra: pip install "noterl\[hub\]"'):
        locate("hub:a/b")


def test_folder_stands_for_the_file_in_it(tmp_path: Path) -> None:
    assert locate(tmp_path) == tmp_path
    (tmp_path / "agent.noterl").write_bytes(b"")
    assert locate(tmp_path) == locate(tmp_path / "agent.noterl") == tmp_path / "agent.noterl"
    with pytest.raises(FileError, match=r"agent\.noterl"):
        saving.read(locate(str(tmp_path)))
