"""benchmarks/atari.py: its pairs, its bars, and which results it stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import atari

pytestmark = pytest.mark.backend_free

MILLISECONDS = {"noterl-torch": 10.0, "noterl-jax": 8.0, "noterl-tensorflow": 13.0, "bare": 9.5, "sb3": 12.0}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Replace the processes, and return the participants that ran, in order."""
    found: list[str] = []

    def execute(words: list[str], added: dict[str, str]) -> dict[str, Any]:
        name, steps = words[words.index("--run") + 1], int(words[words.index("--steps") + 1])
        who = f"noterl-{added['KERAS_BACKEND']}" if name == "noterl" else name
        assert (words[0] == "peer") == (name == "sb3")
        found.append(who)
        return {"seconds": steps * MILLISECONDS[who] / 4e3, "updates": steps // 4, "peak_gib": 1.0}

    monkeypatch.setattr(atari, "execute", execute)
    monkeypatch.setattr(atari, "RESULT", tmp_path / "atari.json")
    return found


def test_participants_alternate_and_ratios_have_their_bars(ran: list[str]) -> None:
    atari.main(["--pairs", "5", "--steps", "5000", "--peer-python", "peer"])
    assert len(ran) == 25 and ran[:5] == list(atari.PARTICIPANTS) and ran[5] != ran[0]
    result = json.loads(atari.RESULT.read_text())
    rows = {row["name"]: (round(row["ratio"]["ratio"], 3), row["met"]) for row in result["summary"]}
    assert rows == {
        "noterl-torch / bare": (1.053, True),
        "noterl-torch / sb3": (0.833, True),
        "noterl-jax / sb3": (0.667, True),
        "noterl-tensorflow / sb3": (1.083, False),
    }


def test_short_or_partial_runs_are_not_stored(ran: list[str]) -> None:
    atari.main(["--pairs", "1", "--steps", "4000", "--peer-python", "peer"])
    atari.main(["--pairs", "1", "--participants", "bare", "noterl-jax", "--peer-python", "peer"])
    assert not atari.RESULT.exists()
    with pytest.raises(SystemExit):
        atari.main(["--steps", "2000"])
