"""The Python blocks of README.md and docs/ run as they are written, with `fit` shortened.

The blocks of a page run in order, in one namespace and in an empty folder. Pages run on torch; the README runs on every
backend. A line `% backends: jax` (in the README `<!-- backends: jax -->`) before a block restricts the block to these
backends, and the page then runs on them too. Only ```python fences may hold Python.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl.callback import LambdaCallback

ROOT = Path(__file__).parents[2]
BACKENDS = ("tensorflow", "jax", "torch")
DEFAULT_BACKEND = "torch"
# Training in examples is cut to this many episodes or environment steps; the steps fill the default minibatches.
SHORT = {"episodes": 2, "steps": 1_100}
# Updates after which training ends too: for blocks with large networks or many updates for each step. The first number
# holds once there are two episodes, of which a block may print what they logged.
UPDATES = 20, 150

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL)
BACKENDS_LINE = re.compile(r"(?:^ *% *backends: *([\w, ]+)|<!-- *backends: *([\w, ]+?) *-->)\s*\Z", re.MULTILINE)
# Pages that run in a process of their own: ale-py crashes in a process that has imported some packages of other tests.
ISOLATED = ("atari.md",)
PROGRAM = """
import sys
from pathlib import Path
from noterl.agent import BaseAgent
from tests.docs.test_code_blocks import run_page, shortened
BaseAgent.fit = shortened(BaseAgent.fit)
page = Path(sys.argv[1])
run_page(page, page.read_text(encoding="utf-8"), sys.argv[2])
"""
# Other info strings for Python, whose blocks would be shown but not run.
OTHER_PYTHON = re.compile(r"(?i)\bi?python|\bpy\d?\b|pycon")


def find_pages() -> list[Path]:
    """Return README.md and the pages of docs/, without the output of a build of the docs."""
    docs = ROOT / "docs"
    pages = [page for page in docs.rglob("*.md") if not page.relative_to(docs).parts[0].startswith("_")]
    return [ROOT / "README.md", *sorted(pages)]


@dataclass(frozen=True)
class Block:
    """A ```python block: its code, the line of its first statement, and its backends, empty for all."""

    code: str
    line: int
    backends: tuple[str, ...]


def read_blocks(text: str) -> list[Block]:
    """Return the Python blocks of a page.

    Raises:
        ValueError: if a comment before a block names an unknown backend, or Python is fenced in another way.
    """
    blocks = []
    end = 0
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start("code")) + 1
        info = fence["info"].strip()
        if info != "python" and OTHER_PYTHON.search(info):
            raise ValueError(f"line {line - 1}: write ```python instead of ```{info}, so that the block runs")
        comment = BACKENDS_LINE.search(text, end, fence.start())
        end = fence.end()
        if info != "python":
            continue
        names = tuple(re.split(r"[, ]+", (comment[1] or comment[2]).strip())) if comment else ()
        if unknown := set(names).difference(BACKENDS):
            raise ValueError(f"line {line - 1}: unknown backends {sorted(unknown)}; known are {', '.join(BACKENDS)}")
        blocks.append(Block(textwrap.dedent(fence["code"]), line, names))
    return blocks


def page_backends(page: Path) -> set[str]:
    """Return the backends on which a page runs."""
    if page.name == "README.md":
        return set(BACKENDS)
    blocks = read_blocks(page.read_text(encoding="utf-8"))
    return {name for block in blocks for name in block.backends or (DEFAULT_BACKEND,)}


def run_page(page: Path, text: str, backend: str) -> None:
    """Run the blocks of a page; a failure names the page and the line."""
    namespace: dict[str, Any] = {"__name__": "example"}
    for block in read_blocks(text):
        if block.backends and backend not in block.backends:
            continue
        try:
            # Empty lines in front give each statement its line in the page.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
        except Exception as error:
            line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
            for frame in traceback.extract_tb(error.__traceback__):
                line = frame.lineno if frame.filename == str(page) else line
            raise AssertionError(f"{page.name}:{line}: {type(error).__name__}: {error}") from error


def stop_after_updates(agent: noterl.Agent) -> LambdaCallback:
    episodes = agent.episodes + SHORT["episodes"]
    enough, most = (agent.updates + number for number in UPDATES)

    def stop() -> None:
        if agent.updates >= (enough if agent.episodes >= episodes else most):
            agent.stop("enough for a test")

    return LambdaCallback(on_step_end=stop)


def shortened(fit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fit)
    def short_fit(
        self: noterl.Agent,
        env: Any = None,
        episodes: int | None = None,
        *,
        steps: int | None = None,
        callbacks: Iterable[Any] = (),
        verbose: Any = 0,
        **more: Any,
    ) -> Any:
        episodes = episodes and min(episodes, SHORT["episodes"])
        steps = steps and min(steps, SHORT["steps"])
        if os.environ["KERAS_BACKEND"] == "torch":  # on JAX, an event of each step would keep training off the device
            callbacks = [*callbacks, stop_after_updates(self)]
        return fit(self, env, episodes, steps=steps, callbacks=callbacks, verbose=0, **more)

    return short_fit


# docs/tips.md trains with a learning rate that makes the loss diverge; acting in NumPy then warns. Which warnings NumPy
# raises depends on the processor.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize(
    "page",
    [page for page in find_pages() if os.environ["KERAS_BACKEND"] in page_backends(page)],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_code_blocks_run(page: Path, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in ISOLATED:
        if importlib.util.find_spec("ale_py") is None:
            pytest.skip("the extra atari is not installed")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", PROGRAM, str(page), backend]
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-2_000:]
        return
    monkeypatch.chdir(tmp_path)
    from noterl.agent import BaseAgent

    monkeypatch.setattr(BaseAgent, "fit", shortened(BaseAgent.fit))
    run_page(page, page.read_text(encoding="utf-8"), backend)


def test_readme_has_examples() -> None:
    assert len(read_blocks((ROOT / "README.md").read_text(encoding="utf-8"))) >= 3


PLANTED = """# A page

```python
x = 1
```

Text, and a shell command:

```bash
exit 1
```

% backends: jax

```python
x = 2
```

```python
y = 3
assert x == 2, x
```
"""


def test_failing_block_is_reported_with_page_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    run_page(page, PLANTED, "jax")
    with pytest.raises(AssertionError, match=r"page\.md:21: AssertionError: 1"):
        run_page(page, PLANTED, "torch")
    with pytest.raises(AssertionError, match=r"page\.md:4: SyntaxError"):
        run_page(page, PLANTED.replace("x = 1", "x = = 1"), "jax")


def test_page_runs_on_the_backends_that_its_blocks_name(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PLANTED)
    assert page_backends(page) == {"jax", "torch"}
    page.write_text("- item\n\n  <!-- backends: torch, tensorflow -->\n  ```python\n  x = 1\n  ```\n")
    assert page_backends(page) == {"torch", "tensorflow"}
    assert read_blocks(page.read_text())[0].code == "x = 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("% backends: theano\n```python\nx = 1\n```\n", "theano"),
        ("```py\nx = 1\n```\n", "line 1.*```python"),
        ("```{code-block} python\nx = 1\n```\n", "```python"),
        ("```python title=a\nx = 1\n```\n", "```python"),
    ],
)
def test_block_that_would_not_run_raises(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_blocks(text)
