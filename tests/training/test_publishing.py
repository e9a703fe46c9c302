"""`Agent.publish`: the folder, the card, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.callbacks import CSVLogger
from tests.support.doubles import CountingEnv

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.filterwarnings("ignore:the environment was not rendered"),
]


@pytest.fixture
def agent() -> Any:
    agent = noterl.DQN(lambda: CountingEnv(3), hidden=(4,), seed=1)
    agent.fit(episodes=12, verbose=0)
    return agent


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_folder_holds_the_agent_and_a_card_for_hubs(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    hub = pytest.importorskip("huggingface_hub")
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    history = agent.fit(episodes=3, verbose=0)
    folder = agent.publish(tmp_path / "new" / "pole", episodes=2, license="MIT")
    assert sorted(contents(folder)) == ["README.md", "agent.noterl", "curve.png", "replay.gif"]
    card = hub.ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.license, card.data.model_name) == ("noterl", "mit", "DQN")
    assert card.data.pipeline_tag in card.data.tags and "CartPole-v1" in card.data.tags
    (result,) = card.data.eval_results
    returns = agent.evaluate(episodes=2)["returns"]
    assert (result.task_type, result.dataset_name) == ("reinforcement-learning", "CartPole-v1")
    assert (result.metric_type, result.metric_value) == ("mean_reward", f"{returns.mean():.2f} +/- {returns.std():.2f}")
    for text in (
        "replay.gif",
        "curve.png",
        "| hidden | `(4,)` |",
        "| episodes | `2` |",
        f"| noterl | `{noterl.__version__}`",
    ):
        assert text in card.text
    loaded = noterl.load(folder)
    assert (
        loaded.steps == sum(history.history["length"])
        and saving.read(folder / "agent.noterl")["state"]["replay"] is None
    )
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    assert (loaded.act(observations) == agent.act(observations)).all()
    loaded.restore(str(folder))
    loaded.publish(folder, episodes=1, video=False)
    assert hub.ModelCard.load(folder / "README.md").data.eval_results[0].dataset_name == "CartPole-v1"


def test_later_call_replaces_the_files(agent: Any, tmp_path: Path) -> None:
    agent.publish(tmp_path, episodes=1)
    (tmp_path / "replay.gif").write_bytes(b"of an environment that renders")
    (tmp_path / "LICENSE").write_text("of the user")
    agent.set_weights({name: 2 * value for name, value in agent.get_weights().items()})
    agent.publish(str(tmp_path), CountingEnv(3), episodes=1, video=False)
    assert sorted(contents(tmp_path)) == ["LICENSE", "README.md", "agent.noterl", "curve.png"]
    for name, value in noterl.load(tmp_path).get_weights().items():
        assert np.array_equal(value, agent.get_weights()[name])


def test_environment_that_does_not_render_has_no_video(agent: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="not rendered"):
        agent.publish(tmp_path, episodes=1)
    card = (tmp_path / "README.md").read_text()
    assert "There is no video: " in card and not (tmp_path / "replay.gif").exists()


def test_log_gives_the_curve_and_the_settings(tmp_path: Path) -> None:
    agent = noterl.DQN(lambda: CountingEnv(3), hidden=(4,), seed=1)
    agent.fit(episodes=12, verbose=0, callbacks=[CSVLogger(tmp_path / "run" / "log.csv")])
    agent.save(tmp_path / "run" / "agent.noterl")
    loaded = noterl.load(tmp_path / "run")
    loaded.publish(tmp_path / "a", lambda: CountingEnv(3), episodes=1)
    assert "There is no log of the training" in (tmp_path / "a" / "README.md").read_text()
    loaded.publish(tmp_path / "a", lambda: CountingEnv(3), episodes=1, log=tmp_path / "run" / "log.csv")
    assert (tmp_path / "a" / "curve.png").exists() and "| hidden |" in (tmp_path / "a" / "README.md").read_text()
    (tmp_path / "run" / "run.toml").write_text('agent = "dqn"\n')
    loaded.publish(tmp_path / "a", lambda: CountingEnv(3), episodes=1, log=str(tmp_path / "run" / "log.csv"))
    card = (tmp_path / "a" / "README.md").read_text()
    assert '```toml\nagent = "dqn"\n```' in card and "| hidden |" not in card
    assert (tmp_path / "a" / "run.toml").read_text() == 'agent = "dqn"\n'


def test_environment_is_named_by_its_id(tmp_path: Path) -> None:
    agent = noterl.DQN((gymnasium.spaces.Box(-np.inf, np.inf, (4,)), gymnasium.spaces.Discrete(2)), hidden=(4,), seed=1)
    with pytest.raises(ValueError, match="env"):
        agent.publish(tmp_path, episodes=1)
    assert contents(tmp_path) == {}
    spec = gymnasium.make("CartPole-v1").observation_space, gymnasium.spaces.Discrete(2)
    agent = noterl.DQN(spec, hidden=(4,), seed=1)
    for env in ("CartPole-v1", gymnasium.make("CartPole-v1")):
        agent.publish(tmp_path, env, episodes=1, video=False)
        assert '\n      type: "CartPole-v1"\n' in (tmp_path / "README.md").read_text()


def test_cells_escape_what_ends_them(tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(100, memmap=str(tmp_path / "a|`b`")))
    agent.publish(tmp_path / "out", episodes=1, video=False)
    assert r"a\|'b'" in (tmp_path / "out" / "README.md").read_text()


def test_interrupt_leaves_the_old_files(agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.publish(tmp_path, episodes=1)
    before = contents(tmp_path)
    agent.fit(episodes=1, verbose=0)

    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(agent), "animate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            agent.publish(tmp_path, episodes=1)
    assert contents(tmp_path) == before


def test_other_folders_are_refused(agent: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "run").mkdir()
    agent.save(tmp_path / "run" / "agent.noterl")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("# Another project")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for folder in (tmp_path / "file", tmp_path / "run", tmp_path / "other", tmp_path, "", None, 3):
        with pytest.raises(ValueError, match="folder must be"):
            agent.publish(folder, episodes=1)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "value"),
    [("episodes", 0), ("license", ""), ("license", "a\nb"), ("license", None), ("video", "yes"), ("log", "log.txt")],
)
def test_bad_argument_is_named(agent: Any, tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        agent.publish(tmp_path, **{name: value})
    assert contents(tmp_path) == {}
