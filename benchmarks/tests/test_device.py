"""benchmarks/device.py: its bars, and that a complete result is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import device

pytestmark = pytest.mark.backend_free


def separately(name: str, *words: str, cache: str) -> Any:
    """Replace the processes: seed 3 is slow, and seed 5 does not solve the task."""
    seed = int(words[0])
    if name in ("dqn", "sac"):
        return {"device": 3_000.0, "vector": 2_000.0}
    if name == "solve":
        evaluation = 300.0 if seed == 5 else 500.0
        return {"seed": seed, "seconds": 2.5 if seed == 3 else 1.0, "evaluation": evaluation}
    return 400_000.0 if name == "lanes" else {"whole": [10.0, 50.0], "training": [4.0, 8.0]}


def test_complete_result_is_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "run_separately", separately)
    monkeypatch.setattr(device, "RESULT", tmp_path / "device.json")
    device.main(["--parts", "lanes"])
    assert not device.RESULT.exists()
    device.main([])
    result = json.loads(device.RESULT.read_text())
    assert result["solve"]["met"] == 8 and len(result["runs"]) == result["solve"]["seeds"] == 10
    assert result["lanes"]["median"] == 400_000.0
    assert result["dqn"]["ratio"] == result["sac"]["ratio"] == 1.5
    assert (result["population"]["whole"]["ratio"], result["population"]["training"]["ratio"]) == (0.2, 0.5)
