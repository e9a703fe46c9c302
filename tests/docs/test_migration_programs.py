"""The first programs of the pages about the two ancestors train, as printed, until their own criterion is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from noterl.cli import main
from tests.docs.test_code_blocks import ROOT, read_blocks
from tests.docs.test_commands import commands

# JAX makes their updates fastest: Note_rl's schedule makes about 50,000.
pytestmark = [pytest.mark.backends("jax"), pytest.mark.slow]

GOALS = {"note_rl": "reward reached 200", "xagents": "reward reached 195"}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", GOALS)
def test_first_program_reaches_its_criterion(page: str) -> None:
    program = read_blocks((ROOT / f"docs/migration/{page}.md").read_text(encoding="utf-8"))[0].code
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(program, f"{page}.md", "exec"), namespace)
    assert namespace["agent"].history.stop_reason == GOALS[page]


def test_first_command_reaches_its_criterion(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(commands("docs/migration/xagents.md")[0]) == 0
    assert GOALS["xagents"] in "".join(capfd.readouterr())
    assert list(Path("runs/ppo").iterdir()) and Path("ppo.parquet").exists()
