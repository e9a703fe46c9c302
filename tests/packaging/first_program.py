"""Run the first Python block of a Markdown file as a program, as a new user does after `pip install`.

    python first_program.py README.md

Use the Python of an environment with noterl and one framework. The program runs in an empty folder, without the
variable `KERAS_BACKEND`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FRAMEWORKS = ("tensorflow", "jax", "torch")


def first_block(text: str) -> str:
    """Return the first Python block of a Markdown text."""
    found = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError("the text has no Python block")
    return found[1]


def run(program: str) -> int:
    """Run a program in an empty folder and return its exit status."""
    hidden = ("KERAS_BACKEND", "PYTHONPATH", "PYTHONHOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"MPLBACKEND": "agg", "SDL_VIDEODRIVER": "dummy"}
    with tempfile.TemporaryDirectory() as folder:
        environment["KERAS_HOME"] = folder  # without the config file of this machine
        (Path(folder) / "program.py").write_text(program)
        return subprocess.run([sys.executable, "program.py"], cwd=folder, env=environment, check=False).returncode


def main(path: str) -> int:
    """Run the first program of a file; the exit status is that of the program."""
    program = first_block(Path(path).read_text())  # before the folder of this file is left
    installed = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]
    print(f"installed: {', '.join(installed)}", flush=True)
    return run(program) if len(installed) == 1 else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
