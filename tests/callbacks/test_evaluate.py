"""Callbacks that evaluate, record videos and set hyperparameters by schedules."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from PIL import Image

import noterl
from noterl.callback import LambdaCallback
from noterl.callbacks import (
    Animate,
    BackupAndRestore,
    Checkpoint,
    EarlyStopping,
    Evaluate,
    Export,
    HyperparameterScheduler,
    LearningRateScheduler,
    RecordVideo,
)
from noterl.callbacks.support.evaluator import _serve
from noterl.random import selection_seed
from tests.support.doubles import CountingEnv
from tests.support.states import assert_same_state, differences, one_lane
from tests.support.tape import Tape, TapeAgent, rewarded, taped

pytestmark = pytest.mark.backends("torch")

OF_MODULE = lambda: gymnasium.make("CartPole-v1")  # noqa: E731


@pytest.fixture(scope="module")
def agent() -> noterl.DQN:
    return one_lane()


@pytest.fixture(scope="module")
def beginning(agent: noterl.DQN) -> dict[str, Any]:
    return agent.get_state()


@pytest.fixture(autouse=True)
def restore_beginning(agent: noterl.DQN, beginning: dict[str, Any]) -> None:
    agent.set_state(beginning)


class Ready:
    """An evaluator whose evaluation has ended."""

    def __init__(self, counts: dict[str, Any], result: dict[str, Any]) -> None:
        self.pending: Any = counts
        self._result = result

    def is_ready(self) -> bool:
        return self.pending is not None

    def result(self) -> tuple[dict[str, Any], dict[str, Any]]:
        counts, self.pending = self.pending, None
        return counts, self._result


class TestEvaluate:
    def test_results_equal_those_of_agent_evaluate(self, agent: noterl.DQN) -> None:
        """The state at the end of the third episode is evaluated again with `agent.evaluate`."""
        states: list[dict[str, Any]] = []
        keep = LambdaCallback(
            on_episode_end=lambda episode, logs: states.append(agent.get_state()) if episode == 2 else None
        )
        evaluate = Evaluate(every=3, episodes=4, num_envs=2)
        logs = agent.fit(episodes=7, callbacks=[keep, evaluate], verbose=0).history
        agent.set_state(states[0])
        expected = agent.evaluate(episodes=4, seed=selection_seed(agent.generators.seed))
        for name in ("reward_mean", "reward_std", "reward_iqm", "length_mean"):
            assert logs[f"evaluation_{name}"][2] == evaluate.results[name][0] == expected[name]
        evaluated = [not math.isnan(value) for value in logs["evaluation_reward_mean"]]
        assert evaluated == [False, False, True, False, False, True, False]
        assert evaluate.results["episodes"] == [3, 6]
        assert evaluate.results["steps"] == [logs["steps"][2], logs["steps"][5]]

    def test_training_is_unchanged(self, agent: noterl.DQN, beginning: dict[str, Any]) -> None:
        for every, arguments in (
            (2, {}),
            (3, {"deterministic": False, "seed": 5, "env": "CartPole-v1", "num_envs": 3}),
        ):
            agent.set_state(beginning)
            agent.fit(episodes=8, verbose=0)
            plain = agent.get_state()
            agent.set_state(beginning)
            agent.fit(episodes=8, callbacks=[Evaluate(every=every, episodes=5, **arguments)], verbose=0)
            with_evaluation = agent.get_state()
            assert_same_state({**with_evaluation, "callbacks": {}}, {**plain, "callbacks": {}})

    @pytest.mark.parametrize(("unit", "every", "at"), [("steps", 5, [3, 5, 8, 10]), ("updates", 3, [2, 3, 5, 6, 8, 9])])
    def test_every_counts_in_each_unit(self, unit: str, every: int, at: list[int]) -> None:
        """Each episode has two steps and ends with two updates."""
        agent = taped(Tape())
        agent._set(evaluate=lambda *_, **__: {"reward_mean": 1.0})
        evaluate = Evaluate(every=every, unit=unit)
        agent.fit(episodes=10, callbacks=[evaluate], verbose=0)
        assert evaluate.results["episodes"] == at

    def test_on_best_function_is_called_for_a_new_best(self) -> None:
        bests: list[float] = []
        agent, means = rewarded([0]), iter([1.0, 3.0, 3.0, 2.0, 4.0])
        agent._set(evaluate=lambda *_, **__: {"reward_mean": next(means)})
        evaluate = Evaluate(
            every=1, on_best=lambda agent, result: bests.append((agent.episodes, result["reward_mean"]))
        )
        agent.fit(episodes=5, callbacks=[evaluate], verbose=0)
        assert bests == [(1, 1.0), (2, 3.0), (5, 4.0)]
        assert evaluate.best == 4.0

    @pytest.mark.parametrize(
        ("best_by", "scores", "bests"),
        [
            ("mean", [4.0, 5.0, 4.5], [1, 2]),
            ("lower", [3.0, 1.0, 3.5], [1, 3]),  # the second mean is higher, but the rewards differ more
            (0.25, [3.5, 3.0, 4.0], [1, 3]),
        ],
    )
    def test_best_by_chooses_the_score(self, best_by: str | float, scores: list[float], bests: list[int]) -> None:
        returns = iter(np.array([[3.0, 5.0], [1.0, 9.0], [3.5, 5.5]]))
        improved: list[int] = []
        agent = rewarded([0])

        def result(*_: Any, **__: Any) -> dict[str, Any]:
            values = next(returns)
            return {"returns": values, "reward_mean": values.mean(), "reward_std": values.std()}

        agent._set(evaluate=result)
        evaluate = Evaluate(every=1, best_by=best_by, on_best=lambda agent, result: improved.append(agent.episodes))
        agent.fit(episodes=3, callbacks=[evaluate], verbose=0)
        assert improved == bests
        assert evaluate.best == max(scores)

    def test_on_best_path_is_saved_for_a_new_best(self, agent: noterl.DQN, tmp_path: Path) -> None:
        evaluate = Evaluate(every=2, episodes=3, on_best=tmp_path / "best.noterl")
        agent.fit(episodes=8, callbacks=[evaluate], verbose=0)
        means = evaluate.results["reward_mean"]
        best = noterl.load(tmp_path / "best.noterl")
        assert best.episodes == evaluate.results["episodes"][means.index(max(means))]
        assert best.evaluate(episodes=3, seed=selection_seed(agent.generators.seed))["reward_mean"] == max(means)

    def test_background_returns_the_same_results(
        self, agent: noterl.DQN, beginning: dict[str, Any], tmp_path: Path
    ) -> None:
        found = []
        for background in (False, True):
            agent.set_state(beginning)
            path = tmp_path / f"{background}.noterl"
            evaluate = Evaluate("CartPole-v1", every=3, episodes=3, on_best=path, background=background)
            history = agent.fit(episodes=8, callbacks=[evaluate], verbose=0)
            found.append((evaluate.results, evaluate.best, noterl.load(path).episodes, agent.get_state()))
        assert found[1][:3] == found[0][:3]
        assert found[0][0]["episodes"] == [3, 6]
        assert_same_state({**found[1][3], "callbacks": {}}, {**found[0][3], "callbacks": {}})
        logged = [value for value in history.history.get("evaluation_reward_mean", []) if not math.isnan(value)]
        assert logged == found[0][0]["reward_mean"][: len(logged)]
        assert not multiprocessing.active_children()

    def test_result_that_a_save_takes_is_logged_by_the_next_episode(self) -> None:
        evaluate, agent = Evaluate(every=2), rewarded([0])
        evaluate.agent = agent
        evaluate._evaluator = Ready({"episodes": 2, "steps": 2}, {"reward_mean": 7.0})
        saved = evaluate.get_state()
        assert saved["unlogged"] == {"evaluation_reward_mean": 7.0}
        restored = Evaluate(every=2)
        restored.set_state(saved)
        for each in (evaluate, restored):
            logs: dict[str, Any] = {}
            each.on_episode_end(2, logs)
            assert logs == {"evaluation_reward_mean": 7.0}
            each.on_episode_end(3, logs := {})
            assert logs == {}

    def test_means_of_several_agents_can_be_monitored(self) -> None:
        from noterl.envs import Signals

        agent = noterl.MADDPG(Signals, hidden=(4,), seed=1)
        agent.compile(batch_size=4, learning_starts=10**6, replay=noterl.Replay(50))
        stopper = EarlyStopping(1, -(10**6), monitor="evaluation_reward_mean/listener")
        assert len(agent.fit(episodes=9, callbacks=[Evaluate(every=2, episodes=1), stopper], verbose=0)) == 2

    def test_ctrl_c_does_not_end_the_background_process(self) -> None:
        """Ctrl-C in a terminal reaches all processes of the program."""
        evaluate = Evaluate("CartPole-v1", every=1, background=True)
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)

        def interrupt(episode: int, logs: Any) -> None:
            if evaluate.results and episode < 3:
                os.kill(evaluate._evaluator._process.pid, signal.SIGINT)

        agent.fit(episodes=4, callbacks=[evaluate, LambdaCallback(on_episode_end=interrupt)], verbose=0)
        assert evaluate.results["episodes"] == [1, 2, 3, 4]

    def test_background_evaluates_agents_whose_optimizer_no_file_holds(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")

        def hooked(parameters: Any) -> Any:
            optimizer = torch.optim.Adam(parameters, lr=1e-3)
            optimizer.register_step_pre_hook(lambda *_: None)
            return optimizer

        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
        agent.compile(hooked, learning_starts=8, batch_size=4)
        evaluate = Evaluate(every=2, episodes=1, on_best=tmp_path / "best.noterl", background=True)
        agent.fit(episodes=4, callbacks=[evaluate], verbose=0)
        evaluate.results.pop("steps")
        assert evaluate.results["episodes"] == [2, 4]
        assert evaluate.results["reward_mean"][1] == agent.evaluate(**evaluate._arguments)["reward_mean"]
        with pytest.raises(ValueError, match=r"call agent.restore"):
            noterl.load(tmp_path / "best.noterl")
        agent.restore(tmp_path / "best.noterl")

    def test_errors_of_the_background_process_raise(self) -> None:
        for factory in (lambda: gymnasium.make("CartPole-v1"), OF_MODULE):  # pickle raises a different error for each
            with pytest.raises(ValueError, match="evaluate: the arguments"):
                one_lane().fit(episodes=1, callbacks=[Evaluate(factory, background=True)], verbose=0)
        ours, theirs = multiprocessing.Pipe()
        serving = threading.Thread(target=_serve, args=(theirs, "missing.noterl", {}, {"episodes": 1}))
        serving.start()
        ours.send(None)
        assert "FileNotFoundError" in ours.recv()
        ours.close()
        serving.join()
        theirs.close()

    def test_other_callbacks_can_monitor_its_metrics(self, agent: noterl.DQN) -> None:
        stopper = EarlyStopping(1, -1, monitor="evaluation_reward_mean")
        assert len(agent.fit(episodes=9, callbacks=[Evaluate(every=4, episodes=1), stopper], verbose=0)) == 4

    def test_two_evaluations_log_under_their_names(self) -> None:
        agent, short = one_lane(), lambda: gymnasium.make("CartPole-v1", max_episode_steps=3)
        callbacks = [Evaluate(every=2, episodes=2), Evaluate(short, every=2, episodes=2, name="short")]
        stopper = EarlyStopping(1, 3, monitor="short_reward_mean")
        logs = agent.fit(episodes=4, callbacks=[*callbacks, stopper], verbose=0).history
        assert len(logs["reward"]) == 2
        assert logs["short_reward_mean"][1] == 3
        assert logs["evaluation_reward_mean"][1] == callbacks[0].results["reward_mean"][0] > 3
        steps = agent.steps
        with pytest.raises(ValueError, match="name must differ between two Evaluate of a fit, got 'evaluation' twice"):
            agent.fit(episodes=2, callbacks=[Evaluate(), Evaluate(short)], verbose=0)
        assert agent.steps == steps

    def test_subclass_may_add_metrics(self) -> None:
        class Longer(Evaluate):
            adds = ("extra",)

            def on_episode_end(self, episode: int, logs: Any) -> None:
                super().on_episode_end(episode, logs)
                if episode == 2:
                    logs["extra"] = 1.0

        stopper = EarlyStopping(1, 1.0, monitor="extra")
        assert len(one_lane().fit(episodes=9, callbacks=[Longer(every=2, episodes=1), stopper], verbose=0)) == 3

    @pytest.mark.parametrize(
        "make",
        [
            lambda path, name: Checkpoint(path, save_best_only=True, monitor=name),
            lambda path, name: Checkpoint(path, save_top_k=2, monitor=name),
            lambda path, name: EarlyStopping(1, patience=2, restore_best_weights=True, monitor=name),
            lambda path, name: Export(path / "policy", "numpy", monitor=name),
        ],
    )
    def test_best_weights_of_a_background_evaluation_are_kept_by_on_best(self, make: Any, tmp_path: Path) -> None:
        """When the result is logged, the agent that was evaluated is gone."""
        agent, evaluate = one_lane(), Evaluate("CartPole-v1", background=True)
        callback = make(tmp_path, "evaluation_reward_mean")
        with pytest.raises(ValueError, match=rf"monitor: {type(callback).__name__} .*Evaluate\(on_best=path\)"):
            agent.fit(episodes=20, callbacks=[evaluate, callback], verbose=0)
        assert agent.steps == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"name": ""}, "name must be the prefix of the metrics, got ''"),
            ({"every": 0}, "every must be a positive int, got 0"),
            ({"unit": "days"}, "unit must be .*'episodes'.*, got 'days'"),
            ({"episodes": 0}, "episodes must be a positive int, got 0"),
            ({"num_envs": 1.5}, "num_envs must be a positive int, got 1.5"),
            ({"seed": -1}, "seed must be a non-negative int or None, got -1"),
            ({"on_best": print, "background": True}, "on_best must be a path or None with background=True"),
            ({"best_by": "median"}, "best_by must be 'mean' or 'lower', got 'median'"),
            ({"best_by": 1.0}, "best_by must be 'mean', 'lower' or a quantile between 0 and 1, got 1.0"),
            ({"on_best": 3}, "on_best must be a path, a function of agent and result, or None, got 3"),
        ],
    )
    def test_bad_arguments_raise(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{message}"):
            Evaluate(**arguments)

    def test_environment_with_other_spaces_raises_before_training(self) -> None:
        agent = rewarded([0])
        with pytest.raises(ValueError, match=r"env has the observation_space"):
            agent.fit(episodes=9, callbacks=[Evaluate("Acrobot-v1", every=1000)], verbose=0)
        assert agent.steps == 0

    def test_environment_that_another_process_cannot_make_raises_before_training(self) -> None:
        agent = noterl.DQN(CountingEnv, hidden=(4,))
        with pytest.raises(ValueError, match=r"env must .*background=True"):
            agent.fit(episodes=9, callbacks=[Evaluate(every=1000, background=True)], verbose=0)
        assert agent.steps == 0
        evaluate = Evaluate(CountingEnv, every=1, episodes=1, background=True)
        agent.fit(episodes=1, callbacks=[evaluate], verbose=0)
        assert evaluate.results["episodes"] == [1]

    def test_unwritable_path_raises_before_training(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        agent = rewarded([0])
        with pytest.raises(OSError, match=r"best\.noterl"):
            agent.fit(episodes=1, callbacks=[Evaluate(on_best=tmp_path / "file" / "best.noterl")], verbose=0)
        assert agent.steps == 0


class TestVideos:
    def test_files_are_written_every_two_episodes_and_hold_frames(self, agent: noterl.DQN, tmp_path: Path) -> None:
        pytest.importorskip("pygame")
        recorder = RecordVideo(tmp_path, every=2, max_steps=4, fps=20)
        agent.fit(episodes=5, callbacks=[recorder, Animate(tmp_path / "last.gif", max_steps=4, fps=20)], verbose=0)
        assert [file.name for file in recorder.files] == ["episodes-000002.gif", "episodes-000004.gif"]
        agent.animate(tmp_path / "again.gif", max_steps=4, fps=20)
        assert (tmp_path / "last.gif").read_bytes() == (tmp_path / "again.gif").read_bytes()
        with Image.open(recorder.files[0]) as picture:
            shown = 0
            for frame in range(picture.n_frames):  # equal frames are stored as one longer frame
                picture.seek(frame)
                shown += picture.info["duration"]
            assert (picture.size, shown) == ((600, 400), 5 * 50)

    def test_mp4_is_written(self, agent: noterl.DQN, tmp_path: Path) -> None:
        pytest.importorskip("pygame")
        pytest.importorskip("imageio_ffmpeg")
        agent.fit(episodes=1, callbacks=[RecordVideo(tmp_path, every=1, kind="mp4", max_steps=2)], verbose=0)
        assert (tmp_path / "episodes-000001.mp4").read_bytes()[4:8] == b"ftyp"

    def test_animation_of_a_complete_fit_is_kept(self, tmp_path: Path) -> None:
        pytest.importorskip("pygame")

        def run(episodes: int) -> None:
            """Run a script of two fits, of which each has an animation."""
            agent, backup = noterl.DQN("CartPole-v1", hidden=(4,), seed=1), BackupAndRestore(tmp_path / "backup.noterl")
            for number in (1, 2):
                animate = Animate(tmp_path / f"{number}.gif", max_steps=2)
                agent.fit(episodes=episodes, callbacks=[animate, backup], verbose=0)

        run(1)
        (tmp_path / "1.gif").write_bytes(b"the animation of the first fit")
        (tmp_path / "2.gif").unlink()
        run(1)
        assert (tmp_path / "1.gif").read_bytes() == b"the animation of the first fit"
        assert (tmp_path / "2.gif").read_bytes()[:3] == b"GIF"

    def test_failed_training_writes_no_animation(self, tmp_path: Path) -> None:
        tape = Tape()
        tape.acts["step 0", 1] = lambda: int("no number")
        with pytest.raises(ValueError, match="no number"):
            taped(tape).fit(episodes=1, callbacks=[Animate(tmp_path / "last.gif")], verbose=0)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: RecordVideo("v", 0), "every must be a positive int, got 0"),
            (lambda: RecordVideo("v", unit="seconds"), "unit must be 'episodes', 'steps' or 'updates', got 'seconds'"),
            (lambda: RecordVideo("v", kind="avi"), "kind must be 'gif' or 'mp4', got 'avi'"),
            (lambda: RecordVideo("v", max_steps=0), "max_steps must be a positive int"),
            (lambda: Animate(3), "path must be the path of a .gif or .mp4 file, got 3"),
            (lambda: Animate("v.avi"), "path must end in .gif or .mp4, got 'v.avi'"),
            (lambda: Animate("v.gif", fps=0), "fps must be a positive int, got 0"),
        ],
    )
    def test_bad_arguments_raise(self, build: Any, message: str) -> None:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            build()


class TestSchedulers:
    def test_learning_rate_follows_the_schedule_by_episode(self, agent: noterl.DQN) -> None:
        recorded: list[tuple[int, float]] = []
        recorder = LambdaCallback(
            on_batch_end=lambda batch, logs: recorded.append((agent.episodes, agent.learning_rate))
        )
        scheduler = LearningRateScheduler(lambda episode: 2.0**-episode / 64, unit="episodes")
        logs = agent.fit(episodes=6, callbacks=[scheduler, recorder], verbose=0).history
        assert logs["learning_rate"] == [2.0**-episode / 64 for episode in range(6)]
        assert {rate == 2.0**-episode / 64 for episode, rate in recorded} == {True}
        assert agent.learning_rate == 2.0**-6 / 64
        assert agent.trace_counts["update"] <= 3

    @pytest.mark.parametrize("unit", ["steps", "updates"])
    def test_live_sets_the_value_before_each_update(self, agent: noterl.DQN, unit: str) -> None:
        recorded: list[tuple[int, float]] = []
        recorder = LambdaCallback(
            on_batch_begin=lambda batch, logs: recorded.append((getattr(agent, unit), float(agent.learning_rate)))
        )
        agent.fit(
            episodes=3, callbacks=[LearningRateScheduler(lambda n: 2.0**-n, unit=unit, live=True), recorder], verbose=0
        )
        assert len(recorded) == agent.updates > 10
        assert all(rate == np.float32(2.0**-number) for number, rate in recorded if number < 100)

    def test_hyperparameters_and_rules_follow_schedules(self, agent: noterl.DQN) -> None:
        schedulers = [
            HyperparameterScheduler("gamma", lambda steps: 0.5 + steps / 2**12),
            HyperparameterScheduler("beta_1", lambda episode: 0.5 / (1 + episode), unit="episodes"),
        ]
        logs = agent.fit(episodes=3, callbacks=schedulers, verbose=0).history
        assert logs["gamma"] == [0.5, *(0.5 + steps / 2**12 for steps in logs["steps"][:-1])]
        np.testing.assert_allclose(logs["beta_1"], [0.5, 0.25, 0.5 / 3], rtol=1e-7)

    @pytest.mark.parametrize("unit", ["steps", "updates"])
    def test_end_of_a_fit_within_an_episode_sets_no_value(self, unit: str) -> None:
        weights = []
        for parts in ((60,), (31, 29)):
            agent = one_lane()
            scheduler = HyperparameterScheduler("gamma", lambda count: 1 / (2 + count), unit=unit)
            for steps in parts:
                agent.fit(steps=steps, callbacks=[scheduler], verbose=0)
            weights.append(agent.get_weights())
        assert not differences(*weights)

    def test_schedule_of_one_optimizer_leaves_the_others(self) -> None:
        class Two(TapeAgent):
            optimizer_names = ("actor", "critic")

            def update(self, batch: Any) -> tuple[dict[str, Any], None]:
                raise NotImplementedError  # `TapeLearner` never calls it

        adams = {name: keras.optimizers.Adam(0.5) for name in Two.optimizer_names}
        agent = rewarded([0], Two, optimizer=adams)
        scheduler = LearningRateScheduler(lambda steps: 0.25, optimizer="critic")
        history = agent.fit(episodes=1, callbacks=[scheduler], verbose=0)
        rates = {name: float(optimizer.learning_rate) for name, optimizer in agent.optimizers.items()}
        assert rates == {"actor": 0.5, "critic": 0.25}
        assert history.history["learning_rate/critic"] == [0.25]

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: LearningRateScheduler(0.1), "schedule must be a function of the number of steps, got 0.1"),
            (
                lambda: LearningRateScheduler(lambda epoch, rate: rate),
                "schedule must be .* one argument, .* steps: .*'rate'",
            ),
            (
                lambda: LearningRateScheduler(abs, unit="days"),
                "unit must be 'steps', 'updates' or 'episodes', got 'days'",
            ),
        ],
    )
    def test_bad_arguments_raise(self, build: Any, message: str) -> None:
        with pytest.raises(ValueError, match=f"^{message}"):
            build()

    def test_unknown_name_raises(self) -> None:
        with pytest.raises(ValueError, match="name must"):
            rewarded([0]).fit(episodes=1, callbacks=[HyperparameterScheduler("gama", abs)], verbose=0)
        scheduler = HyperparameterScheduler("gamma", lambda count: 0.9, optimizer="critic")
        with pytest.raises(ValueError, match="optimizer must be None for the agent's gamma, got 'critic'"):
            noterl.SAC("Pendulum-v1", hidden=(8,)).fit(episodes=1, callbacks=[scheduler], verbose=0)

    def test_process_that_has_died_is_named(self) -> None:
        evaluate = Evaluate("CartPole-v1", every=3, episodes=1, background=True)
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)

        def kill(episode: int, logs: Any) -> None:
            if episode == 0:
                os.kill(evaluate._evaluator._process.pid, signal.SIGKILL)
                evaluate._evaluator._process.join()

        with pytest.raises(RuntimeError, match="the evaluation process ended with exit code -9"):
            agent.fit(episodes=9, callbacks=[LambdaCallback(on_episode_end=kill), evaluate], verbose=0)
