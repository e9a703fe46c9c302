"""`noterl launch`: the open ports of TensorFlow need the user's consent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from noterl.cli import launch
from noterl.cli.errors import UsageError

pytestmark = pytest.mark.backend_free


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.touch()
    return str(path)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace the processes by a list of their names, one list for each launch."""
    names: list[list[str]] = []

    class Launch:
        def __init__(self, process_names: list[str], *arguments: Any, **options: Any) -> None:
            names.append(process_names)

        def run(self) -> int:
            return 0

    monkeypatch.setattr(launch, "Launch", Launch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return names


@pytest.mark.parametrize("strategy", ["multiworker", "parameter_server", "parameter-server"])
def test_tensorflow_needs_a_trusted_network(strategy: str, script: str, launched: list[list[str]]) -> None:
    with pytest.raises(UsageError, match=r"interfaces.*--trusted-network"):
        launch.run(["--strategy", strategy, script])
    # Behind the script, the option belongs to the script.
    with pytest.raises(UsageError, match="in front of the script"):
        launch.run(["--strategy", strategy, script, "--trusted-network"])
    assert not launched
    launch.run(["--strategy", strategy, "--trusted-network", script])
    assert len(launched) == 1 and launched[0][-1] == ("rank 1" if strategy == "multiworker" else "ps 0")


def test_trusted_network_is_refused_where_only_the_loopback_interface_is_used(
    script: str, launched: list[list[str]]
) -> None:
    with pytest.raises(UsageError, match="--trusted-network is for"):
        launch.run(["--strategy", "ddp", "--trusted-network", script])
    assert not launched
    launch.run(["--strategy", "ddp", script])
    assert launched == [["rank 0", "rank 1"]]


@pytest.mark.parametrize("strategy", ["data-parallel", "mirrored"])
def test_strategies_of_one_process_need_no_launcher(strategy: str, script: str, launched: list[list[str]]) -> None:
    with pytest.raises(UsageError, match=r"--strategy must be ddp, .*train on the devices of one process"):
        launch.run(["--strategy", strategy, script])
    assert not launched
