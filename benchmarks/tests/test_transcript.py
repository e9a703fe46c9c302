"""benchmarks/transcript.py: what it records of the output of commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import transcript

pytestmark = pytest.mark.backend_free


def test_lines_are_those_of_a_terminal() -> None:
    assert transcript.printed("10 %\r20 %\r100 %\n\x1b[1mdone\x1b[0m\n\n") == ["100 %", "done"]


def test_long_outputs_are_cut() -> None:
    found = transcript.printed("\n".join(map(str, range(50))))
    assert found[0] == "0" and found[-1] == "49" and "[28 lines left out]" in found and len(found) == 23


def test_record_holds_commands_and_outputs(tmp_path: Path) -> None:
    found = transcript.record(["echo $PWD/x; echo error >&2", "true"], tmp_path, os.environ["PATH"])
    assert found == ["$ echo $PWD/x; echo error >&2", "~/x", "error", "(0 s)", "", "$ true", "", "(0 s)"]


def test_command_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="'echo no; exit 3' ended with 3: no"):
        transcript.record(["echo no; exit 3"], tmp_path, os.environ["PATH"])
