"""A second writer of a file is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from noterl.callbacks.support.claim import Claim
from tests.support.states import ROOT

pytestmark = pytest.mark.backend_free

SCRIPT = """
import sys, time
from pathlib import Path
from noterl.callbacks.support.claim import Claim
claim = Claim(Path(sys.argv[1]))
claim.take()
print("held", flush=True)
time.sleep(600)
"""


def test_living_writer_is_reported_and_killed_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    other = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], env=environment, stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline() == b"held\n"
    claim = Claim(path)
    with pytest.warns(UserWarning, match=rf"log\.csv .*{other.pid} "):
        claim.take()
    claim.release()
    other.kill()
    other.wait()
    other.stdout.close()
    claim.take()
    claim.release()
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_is_left_to_the_writer_of_the_file(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "absent" / "log.csv")
    claim.take()
    claim.release()
