"""What a notebook shows and what it holds when it was saved: one kernel executes all cells."""

from __future__ import annotations

import base64
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]

# For one cell: a kernel outlives the test that the timeout of pytest ends. No cell takes a minute.
CELL_SECONDS = 600
ROOT = Path(__file__).parents[2]
CELLS = {
    "fit": """
        import noterl
        from noterl.callbacks import EarlyStopping
        from noterl.plotting import compare
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
        history = agent.fit(episodes=300, callbacks=[EarlyStopping(trial_count=1, criterion=1)])
    """,
    "history": "history",
    "plot": "history.plot()",
    "compare": "compare([history, history])",
    "finder": """
        finder = noterl.finders.LRFinder(agent)
        finder.metric = "loss"
        finder.results = [{"learning_rate": 0.1, "loss": 1.0, f"{finder._mean}_loss": 1.0, "mean_loss": 1.0}]
        finder.plot_loss()
    """,
    "animate": 'agent.animate("a.gif", max_steps=3)',
    "play": 'agent.play(video="b.gif", max_steps=3)',
    "agent": "agent",
    "callback": "EarlyStopping(5, criterion=475)",
    "inline": """
        %matplotlib inline
        history.plot("reward")
    """,
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return the outputs of each cell as a file holds them."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [nbformat.v4.new_code_cell(textwrap.dedent(text).strip()) for text in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy"}
    environment.pop("MPLBACKEND", None)  # of the tests; the kernel chooses
    client = nbclient.NotebookClient(notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    nbformat.write(notebook, folder / "saved.ipynb")
    saved = nbformat.read(folder / "saved.ipynb", as_version=4)
    return dict(zip(CELLS, (cell.outputs for cell in saved.cells), strict=True))


def result(outputs: list[Any]) -> Any:
    """Return the result of a cell by its kinds of text and picture; the cell shows nothing else."""
    [output] = [output for output in outputs if output.output_type != "stream"]
    return output.data


@pytest.mark.parametrize("cell", ["plot", "compare", "finder", "inline"])
def test_figure_is_shown_once(outputs: dict[str, list[Any]], cell: str) -> None:
    picture = base64.b64decode(result(outputs[cell])["image/png"])
    assert picture.startswith(b"\x89PNG") and len(picture) > 5_000


def test_saved_bar_shows_the_end_of_training(outputs: dict[str, list[Any]]) -> None:
    [bar] = [output.data for output in outputs["fit"] if output.output_type == "display_data"]
    assert bar.keys() == {"text/plain"}
    assert bar["text/plain"].startswith("episode 1 ") and "|" in bar["text/plain"] and "#" not in bar["text/plain"]
    assert "1/300" in bar["text/plain"] and "reward" in bar["text/plain"] and "\r" not in bar["text/plain"]
    assert all("IProgress" not in output.text for output in outputs["fit"] if output.output_type == "stream")


def test_history_agent_and_callback_are_tables(outputs: dict[str, list[Any]]) -> None:
    assert all("<table>" in result(outputs[cell])["text/html"] for cell in ("history", "agent", "callback"))
    assert "ended by: reward reached 1" in result(outputs["history"])["text/html"]
    assert result(outputs["history"])["text/plain"].startswith("<History of 1 episodes: reward, length, loss")
    assert "CartPole-v1" in result(outputs["agent"])["text/html"]
    assert result(outputs["callback"])["text/plain"] == "EarlyStopping(trial_count=5, criterion=475)"


@pytest.mark.parametrize("cell", ["animate", "play"])
def test_animation_is_shown(outputs: dict[str, list[Any]], cell: str) -> None:
    assert '<img src="data:image/gif;base64,R0lGOD' in result(outputs[cell])["text/html"]
    assert len(result(outputs[cell])["text/plain"]) < 600


def kinds(cell: Any) -> list[list[str]]:
    """Return the kinds of text and picture that a cell shows; what it prints depends on the budget."""
    return [sorted(output.data) for output in cell.outputs if output.output_type != "stream"]


def test_notebook_of_the_examples_runs_and_has_outputs(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "notebooks" / "first_hour.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    stored = [kinds(cell) for cell in cells]
    assert all(cell.outputs for cell in cells)
    for cell in cells:  # budgets of a test
        cell.source = re.sub(r"\bsteps=[\d_]{5,}", "steps=600", cell.source).replace("2_500", "200")
        cell.source = re.sub(r"\bepisodes=\d{3}", "episodes=20", cell.source)
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy"}
    environment.pop("MPLBACKEND", None)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=CELL_SECONDS, resources=resources).execute(env=environment)
    assert [kinds(cell) for cell in cells] == stored
