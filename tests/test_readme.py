"""The Python in README.md runs as it stands there, except that training is cut short."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import noterl

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def shortened(fit: Any) -> Any:
    def short_fit(
        self: noterl.Agent, *args: Any, episodes: int | None = None, steps: int | None = None, **more: Any
    ) -> Any:
        budget = {"episodes": 2} if episodes else {"steps": 1_100 if steps else None}
        return fit(self, *args, **budget, **{**more, "verbose": 0})

    return short_fit


def test_the_readme_has_examples() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_the_example_runs(block: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import torch" in block and backend != "torch":
        pytest.skip("runs on torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(noterl.Agent, "fit", shortened(noterl.Agent.fit))
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
