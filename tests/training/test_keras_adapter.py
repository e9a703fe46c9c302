"""Keras callbacks: epochs are completed episodes, train batches are updates, and tests are evaluations."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl.callback import CHECKPOINT, LOGGER, USER, LambdaCallback
from noterl.callbacks import Evaluate
from noterl.networks import get_weights
from noterl.training.dispatch import CallbackList
from noterl.training.keras_adapter import Facade
from tests.support.keras_version import has_keras
from tests.support.representatives import representatives
from tests.support.tape import Tape, TapeAgent, lines, rewarded, taped

pytestmark = pytest.mark.backends("torch")


class KerasRecorder(keras.callbacks.Callback):
    """Writes the events of a Keras callback on a tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def on_train_begin(self, logs=None):
        self.tape.write("train_begin")

    def on_train_end(self, logs=None):
        self.tape.write("train_end")

    def on_epoch_begin(self, epoch, logs=None):
        self.tape.write(f"epoch_begin {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        assert "complete" not in logs
        self.tape.write(f"epoch_end {epoch} reward={logs['reward']:g}")

    def on_train_batch_begin(self, batch, logs=None):
        self.tape.write(f"batch_begin {batch}")

    def on_train_batch_end(self, batch, logs=None):
        self.tape.write(f"batch_end {batch} loss={logs['loss']:g}")

    def on_test_begin(self, logs=None):
        self.tape.write("test_begin")

    def on_test_end(self, logs=None):
        self.tape.write(f"test_end reward_mean={logs['reward_mean']:g} {'returns' in logs}")


def small(learning_rate: float = 1e-3, **compiled: Any) -> noterl.DQN:
    """Return a DQN that makes two updates every eight steps, after the tenth."""
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=3)
    settings = {"batch_size": 4, "learning_starts": 10, "update_every": 8, "updates": 2}
    agent.compile(keras.optimizers.SGD(learning_rate), replay=noterl.Replay(200), **{**settings, **compiled})
    return agent


@pytest.fixture
def tape() -> Tape:
    return Tape()


class TestEvents:
    def test_events_of_one_lane(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["epoch_end 1 reward=2", 1] = lambda: agent.evaluate(episodes=1)
        agent.fit(steps=5, callbacks=[KerasRecorder(tape)], verbose=0)
        assert tape == lines("""
            train_begin
            reset 0; epoch_begin 0
            step 0
            step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; epoch_end 0 reward=2
            reset 0; epoch_begin 1
            step 0; target
            step 0; update 2; batch_begin 2; batch_end 2 loss=2; batch_begin 3; batch_end 3 loss=3; epoch_end 1 reward=2
            test_begin; reset 1; step 1; step 1; test_end reward_mean=2 False
            reset 0; epoch_begin 2
            step 0
            train_end
        """)

    def test_epochs_do_not_overlap_with_several_lanes(self, tape: Tape) -> None:
        agent = taped(tape, update_every=100)
        agent.fit(episodes=5, num_envs=3, callbacks=[KerasRecorder(tape)], verbose=0)
        assert [entry for entry in tape if "epoch" in entry] == [
            entry for epoch in range(5) for entry in (f"epoch_begin {epoch}", f"epoch_end {epoch} reward=2")
        ]

    def test_each_fit_counts_epochs_from_zero(self, tape: Tape) -> None:
        agent, recorder = taped(tape, update_every=100), KerasRecorder(tape)
        for _ in range(2):
            agent.fit(episodes=1, callbacks=[recorder], verbose=0)
        assert [entry for entry in tape if "epoch" in entry] == ["epoch_begin 0", "epoch_end 0 reward=2"] * 2

    def test_error_ends_training(self, tape: Tape) -> None:
        tape.acts["epoch_end 0 reward=2", 1] = lambda: int("no number")
        with pytest.raises(ValueError, match="no number"):
            taped(tape).fit(episodes=3, callbacks=[KerasRecorder(tape)], verbose=0)
        assert tape[-2:] == ["epoch_end 0 reward=2", "train_end"]

    def test_added_metrics_are_passed_on(self) -> None:
        def add(epoch: int, logs: dict[str, Any]) -> None:
            logs["doubled"] = 2 * logs["reward"]

        history = rewarded([1, 4]).fit(
            episodes=2, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=add)], verbose=0
        )
        assert history.history["doubled"] == [2.0, 8.0]


class TestBinding:
    """Hooks that are not overridden are not bound, so they cost nothing."""

    @pytest.mark.parametrize(
        ("callback", "begin", "end"),
        [
            (keras.callbacks.EarlyStopping(), False, False),
            (keras.callbacks.CSVLogger("unused.csv"), False, False),
            (keras.callbacks.TerminateOnNaN(), False, True),
            (keras.callbacks.LambdaCallback(on_epoch_end=print), False, False),
            (keras.callbacks.LambdaCallback(on_train_batch_begin=print), True, False),
            (keras.callbacks.LambdaCallback(on_batch_end=print), False, True),
            (KerasRecorder(Tape()), True, True),
        ],
    )
    def test_only_overridden_batch_hooks_are_bound(
        self, callback: keras.callbacks.Callback, begin: bool, end: bool
    ) -> None:
        events = CallbackList([callback]).bind()
        assert (len(events.on_batch_begin), len(events.on_batch_end)) == (begin, end)

    def test_order_depends_on_the_class(self, tmp_path: Path) -> None:
        keras_callbacks = [
            keras.callbacks.ModelCheckpoint(str(tmp_path / "x.keras")),
            keras.callbacks.CSVLogger(str(tmp_path / "x.csv")),
            keras.callbacks.EarlyStopping(),
        ]
        assert [adapter.order for adapter in CallbackList(keras_callbacks).callbacks] == [USER, LOGGER, CHECKPOINT]

    def test_early_stopping_replaces_a_budget(self) -> None:
        assert CallbackList([keras.callbacks.EarlyStopping()]).callbacks[0].stops_training
        assert not CallbackList([keras.callbacks.TerminateOnNaN()]).callbacks[0].stops_training

    def test_keras_lambda_callback_is_bound(self, tape: Tape) -> None:
        callback = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: tape.write("begin"),
            on_epoch_end=lambda epoch, logs: tape.write(f"epoch {epoch} {logs['length']}"),
            on_train_batch_end=lambda batch, logs: tape.write(f"batch {batch} {logs['loss']:g}"),
            on_train_end=lambda logs: tape.write("end"),
        )
        taped(tape).fit(episodes=1, callbacks=[callback], verbose=0)
        assert tape == lines("begin; reset 0; step 0; step 0; update 2; batch 0 0; batch 1 1; epoch 0 2; end")


class TestEarlyStopping:
    @pytest.mark.parametrize(
        ("arguments", "episodes"),
        [
            ({"patience": 0}, 4),
            ({"patience": 2}, 5),
            ({"patience": 3}, 9),
            ({"patience": 2, "min_delta": 1.5}, 5),
            ({"patience": 1, "start_from_epoch": 5}, 7),
            ({"patience": 2, "baseline": 9}, 4),
        ],
    )
    def test_stops_at_the_same_episode_as_in_keras(self, arguments: dict[str, Any], episodes: int) -> None:
        agent = rewarded([1, 2, 3, 3, 3, 4, 3, 3, 3, 9])
        stopper = keras.callbacks.EarlyStopping(monitor="reward", mode="max", **arguments)
        history = agent.fit(callbacks=[stopper], episodes=10, verbose=0)
        assert len(history) == episodes
        assert history.stop_reason == "the Keras callback EarlyStopping set stop_training"

    def test_loss_can_be_monitored(self) -> None:
        agent = taped(Tape(), learning_starts=0, batch_size=1)
        agent.losses = iter([5, 5, 4, 4, 4, 4, 4, 4, 4, 4])
        assert len(agent.fit(callbacks=[keras.callbacks.EarlyStopping("loss", patience=2)], verbose=0)) == 4

    def test_best_weights_are_restored(self) -> None:
        agent = small(0.1)
        kept: list[list[np.ndarray]] = []
        note = LambdaCallback(on_episode_end=lambda episode, logs: kept.append(get_weights(agent.q)))
        stopper = keras.callbacks.EarlyStopping("reward", mode="max", patience=3, restore_best_weights=True)
        rewards = agent.fit(episodes=30, callbacks=[note, stopper], verbose=0).history["reward"]
        best = stopper.best_epoch
        assert best == rewards.index(max(rewards))
        for weights, expected, last in zip(get_weights(agent.q), kept[best], kept[-2], strict=True):
            np.testing.assert_array_equal(weights, expected)
            assert (weights != last).any()


class TestParameters:
    class EpochsRecorder(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.epochs = self.params["epochs"]

    @pytest.mark.parametrize(
        ("budget", "epochs"), [({"episodes": 3}, 3), ({"steps": 5}, math.inf), ({"episodes": 2, "steps": 100}, 2)]
    )
    def test_epochs_are_the_budget_of_each_fit(self, budget: dict[str, int], epochs: float) -> None:
        agent, recorder = rewarded([0]), self.EpochsRecorder()
        for _ in range(2):
            agent.fit(**budget, callbacks=[recorder], verbose=0)
            assert recorder.epochs == epochs


def keras_small(**arguments: Any) -> noterl.DQN:
    """Return an agent like `small` with a Keras network, also on torch."""
    initializers = [keras.initializers.GlorotUniform(seed=seed) for seed in range(2)]
    layers = [keras.layers.Dense(4, "relu", True, initializers[0]), keras.layers.Dense(2, None, True, initializers[1])]
    agent = noterl.DQN("CartPole-v1", network=keras.Sequential([keras.Input((4,)), *layers]), seed=3)
    settings = {"optimizer": 0.1, "batch_size": 4, "learning_starts": 10, "update_every": 8, "replay": 200}
    agent.compile(**{**settings, **arguments})
    return agent


class TestSwapEMAWeights:
    def averaged(self, **arguments: Any) -> noterl.DQN:
        optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
        return keras_small(optimizer=optimizer, updates=4, **arguments)

    @pytest.mark.backends("tensorflow", "jax", "torch")
    def test_evaluation_uses_the_average_and_training_does_not(self) -> None:
        agent, untouched = self.averaged(), self.averaged()
        recorded: dict[str, Any] = {}
        trained = LambdaCallback(on_episode_end=lambda episode, logs: recorded.update(before=get_weights(agent.q)))
        inside = LambdaCallback(on_evaluate_begin=lambda logs: recorded.update(inside=get_weights(agent.q)))
        evaluate = Evaluate(every=1, episodes=1)
        after = LambdaCallback(on_episode_end=lambda episode, logs: recorded.update(after=get_weights(agent.q)))
        swap = keras.callbacks.SwapEMAWeights()
        agent.fit(episodes=4, callbacks=[trained, swap, inside, evaluate, after], verbose=0)
        untouched.fit(episodes=4, verbose=0)
        average = [np.asarray(keras.ops.convert_to_numpy(v)) for v in agent.optimizer._model_variables_moving_average]
        for before, during, later, mean, plain in zip(
            recorded["before"], recorded["inside"], recorded["after"], average, get_weights(untouched.q), strict=True
        ):
            np.testing.assert_allclose(during, mean, rtol=1e-6)
            assert (during != before).any()
            np.testing.assert_allclose(later, before, rtol=1e-5, atol=1e-7)  # TensorFlow swaps by additions
            np.testing.assert_allclose(later, plain, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("num_envs", representatives([1, 3], 3))
    def test_swap_on_epoch_does_not_change_training(self, num_envs: int) -> None:
        agents = self.averaged(), self.averaged()
        losses: list[list[float]] = [[], []]
        for agent, found, swap in zip(agents, losses, ([keras.callbacks.SwapEMAWeights(True)], []), strict=True):
            note = LambdaCallback(on_batch_end=lambda batch, logs, found=found: found.append(logs["loss"]))
            agent.fit(episodes=9, num_envs=num_envs, callbacks=[*swap, note], verbose=0)
        assert len(losses[0]) > 20
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)

    def test_swap_on_epoch_ends_with_the_average(self) -> None:
        agent, untouched = self.averaged(), self.averaged()
        agent.fit(episodes=5, callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)], verbose=0)
        untouched.fit(episodes=5, verbose=0)
        average = [keras.ops.convert_to_numpy(v) for v in untouched.optimizer._model_variables_moving_average]
        for ours, mean in zip(get_weights(agent.q), average, strict=True):
            np.testing.assert_allclose(ours, mean, rtol=1e-4, atol=1e-6)

    @pytest.mark.skipif(not has_keras(3, 15), reason="older versions of Keras know one optimizer")
    def test_each_of_several_optimizers_is_averaged(self) -> None:
        agent = noterl.DDPG("Pendulum-v1", hidden=(4,), seed=3)
        agent.compile(keras.optimizers.Adam(1e-2, use_ema=True), replay=500, learning_starts=8, batch_size=4)
        swap, recorded = keras.callbacks.SwapEMAWeights(), []
        inside = LambdaCallback(on_evaluate_begin=lambda logs: recorded.append(get_weights(agent.actor)))
        agent.fit(steps=201, callbacks=[swap, inside, Evaluate(every=1, episodes=1)], verbose=0)
        assert any((during != now).any() for during, now in zip(recorded[0], get_weights(agent.actor), strict=True))

    def test_optimizer_without_average_raises(self) -> None:
        with pytest.raises(ValueError, match="use_ema=True"):
            small().fit(episodes=1, callbacks=[keras.callbacks.SwapEMAWeights(), Evaluate(every=1)], verbose=0)


class TestLoggers:
    def test_csv_logger_writes_every_episode(self, tmp_path: Path) -> None:
        agent = taped(Tape(), learning_starts=3)  # the first episode has no loss
        path = tmp_path / "log.csv"
        history = agent.fit(episodes=4, callbacks=[keras.callbacks.CSVLogger(str(path))], verbose=0)
        with path.open() as file:
            rows = list(csv.DictReader(file))
        assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
        for name, values in history.history.items():
            np.testing.assert_equal([float(row[name]) for row in rows], values)
        assert math.isnan(history.history["loss"][0])
        assert history.history["loss"][1:] == [0.5, 2.5, 4.5]

    def test_file_is_closed_when_training_fails(self, tmp_path: Path, tape: Tape) -> None:
        logger = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
        tape.acts["step 0", 3] = lambda: int("no number")
        with pytest.raises(ValueError, match="no number"):
            taped(tape).fit(episodes=4, callbacks=[logger], verbose=0)
        assert logger.csv_file.closed
        assert len((tmp_path / "log.csv").read_text().splitlines()) == 2

    def test_logger_receives_added_metrics(self, tmp_path: Path) -> None:
        add = LambdaCallback(on_episode_end=lambda episode, logs: logs.update(score=episode))
        path = tmp_path / "log.csv"
        rewarded([0]).fit(episodes=2, callbacks=[keras.callbacks.CSVLogger(str(path)), add], verbose=0)
        with path.open() as file:
            assert [row["score"] for row in csv.DictReader(file)] == ["0", "1"]


class TestLearningRate:
    @pytest.mark.backends("tensorflow", "jax", "torch")
    def test_learning_rate_schedule_takes_effect(self) -> None:
        agent = small(0.1, updates=4)
        weights: list[np.ndarray] = []
        note = LambdaCallback(
            on_episode_begin=lambda episode, logs: weights.append(
                np.concatenate([w.ravel() for w in get_weights(agent.q)])
            )
        )
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 if epoch < 4 else 0.0)
        history = agent.fit(episodes=8, callbacks=[schedule, note], verbose=0)
        moved = [bool((after != before).any()) for before, after in itertools.pairwise(weights)]
        assert moved == [True] * 4 + [False] * 3
        np.testing.assert_allclose(history.history["learning_rate"], [0.1] * 4 + [0.0] * 4)
        assert agent.updates == sum(4 for step in range(16, agent.steps + 1) if step % 8 == 0)
        assert agent.trace_counts["update"] <= 2

    @pytest.mark.backends("tensorflow", "jax", "torch")
    def test_plateau_reduces_the_rate(self) -> None:
        agent = small(0.5)
        plateau = keras.callbacks.ReduceLROnPlateau("always", mode="max", factor=0.5, patience=2)
        add = LambdaCallback(on_episode_end=lambda episode, logs: logs.update(always=1.0))
        history = agent.fit(episodes=6, callbacks=[add, plateau], verbose=0)
        # The first episode sets the best value. Two episodes without an improvement follow, twice.
        np.testing.assert_allclose(history.history["learning_rate"], [0.5, 0.5, 0.5, 0.25, 0.25, 0.125])
        assert agent.learning_rate == 0.125

    @pytest.mark.skipif(not has_keras(3, 15), reason="older versions of Keras know one optimizer")
    def test_each_optimizer_is_scheduled(self) -> None:
        class Two(TapeAgent):
            optimizer_names = ("actor", "critic")

            def update(self, batch: Any) -> tuple[dict[str, Any], None]:
                raise NotImplementedError  # `TapeLearner` never calls it

        agent = rewarded(
            [0], Two, optimizer={"actor": keras.optimizers.Adam(0.5), "critic": keras.optimizers.Adam(0.25)}
        )
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        history = agent.fit(episodes=2, callbacks=[schedule], verbose=0).history
        assert history["learning_rate_actor"] == [0.25, 0.125]
        assert history["learning_rate_critic"] == [0.125, 0.0625]

    @pytest.mark.backends("torch")
    def test_native_optimizer_is_scheduled(self) -> None:
        import torch

        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=3)
        agent.compile(lambda parameters: torch.optim.Adam(parameters, lr=0.5), learning_starts=10**6)
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        history = agent.fit(episodes=2, callbacks=[schedule], verbose=0).history
        assert history["learning_rate"] == [0.25, 0.125]
        assert agent.optimizers["optimizer"].param_groups[0]["lr"] == 0.125


class TestTerminateOnNaN:
    def test_terminate_on_nan_ends_training_without_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        agent = taped(Tape())
        agent.losses = iter([1, 1, math.nan, 1])
        history = agent.fit(episodes=9, callbacks=[keras.callbacks.TerminateOnNaN()], verbose=0)
        assert len(history) == 2
        assert history.stop_reason == "the Keras callback TerminateOnNaN set stop_training"
        assert agent.updates == 2


class TestPretraining:
    def test_batch_hooks_have_a_model(self) -> None:
        class Stopping(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.model.stop_training = batch == 2

        agent = noterl.PPO("CartPole-v1", hidden=(4,), seed=1)
        data = noterl.Dataset.record(agent, episodes=2, seed=1)
        callback = Stopping()
        agent.pretrain(data, 10, callbacks=[callback], verbose=0)
        assert callback.model is not None
        other = noterl.PPO("CartPole-v1", hidden=(4,), seed=2)
        other.pretrain(data, 10, callbacks=[callback], verbose=0)
        assert callback.model.agent is other


@pytest.mark.backends("jax", "torch")
class TestSavers:
    def test_model_checkpoint_saves_the_network(self, tmp_path: Path) -> None:
        agent = keras_small()
        saver = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch:02d}-{reward:.0f}.keras"))
        rewards = agent.fit(episodes=3, callbacks=[saver], verbose=0).history["reward"]
        names = [f"{epoch + 1:02d}-{reward:.0f}.keras" for epoch, reward in enumerate(rewards)]
        assert sorted(path.name for path in tmp_path.iterdir()) == names
        network = keras.models.load_model(tmp_path / names[-1])
        for ours, theirs in zip(network.get_weights(), get_weights(agent.q), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert saver.model.agent is agent

    @pytest.mark.backends("tensorflow", "jax")
    @pytest.mark.parametrize("arguments", [{}, {"dueling": True}])
    def test_networks_of_noterl_are_loaded_by_keras(self, arguments: dict[str, Any], tmp_path: Path) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=3, **arguments)
        saver = keras.callbacks.ModelCheckpoint(str(tmp_path / "last.keras"))
        agent.fit(episodes=1, callbacks=[saver], verbose=0)
        network = keras.models.load_model(tmp_path / "last.keras")
        observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
        np.testing.assert_allclose(network(observations), agent.q(observations), rtol=1e-6)

    def test_model_checkpoint_saves_the_best_only(self, tmp_path: Path) -> None:
        agent = keras_small(learning_starts=10**6)
        saver = keras.callbacks.ModelCheckpoint(
            str(tmp_path / "best.keras"), monitor="reward", mode="max", save_best_only=True
        )
        rewards = agent.fit(episodes=6, callbacks=[saver], verbose=0).history["reward"]
        assert saver.best == max(rewards)
        assert len(keras.models.load_model(tmp_path / "best.keras").layers) == 2

    def test_model_checkpoint_saves_weights(self, tmp_path: Path) -> None:
        agent, path = keras_small(), tmp_path / "last.weights.h5"
        saver = keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True)
        agent.fit(episodes=2, callbacks=[saver], verbose=0)
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])
        network.load_weights(path)
        for ours, theirs in zip(network.get_weights(), get_weights(agent.q), strict=True):
            np.testing.assert_array_equal(ours, theirs)

    def test_subclass_of_model_checkpoint_loads_what_it_saves(self, tmp_path: Path) -> None:
        class Reverting(keras.callbacks.ModelCheckpoint):
            def on_train_end(self, logs: Any = None) -> None:
                self.model.load_weights(tmp_path / "1.weights.h5")

        agent = keras_small()
        saver = Reverting(str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True)
        agent.fit(episodes=3, callbacks=[saver], verbose=0)
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])
        network.load_weights(tmp_path / "1.weights.h5")
        for ours, theirs in zip(network.get_weights(), get_weights(agent.q), strict=True):
            np.testing.assert_array_equal(ours, theirs)

    @pytest.mark.parametrize("arguments", [{}, {"save_weights_only": True}])
    def test_model_checkpoint_of_several_networks_raises(self, arguments: dict[str, Any], tmp_path: Path) -> None:
        path = str(tmp_path / ("x.weights.h5" if arguments else "x.keras"))
        agent = noterl.PPO("CartPole-v1", hidden=(4,))
        with pytest.raises(ValueError, match=r"ModelCheckpoint .*actor, critic"):
            agent.fit(episodes=1, callbacks=[keras.callbacks.ModelCheckpoint(path, **arguments)], verbose=0)
        assert (agent.steps, list(tmp_path.iterdir())) == (0, [])

    @pytest.mark.backends("torch")
    def test_model_checkpoint_of_a_native_module_raises(self, tmp_path: Path) -> None:
        saver = keras.callbacks.ModelCheckpoint(str(tmp_path / "x.keras"))
        with pytest.raises(ValueError, match=r"ModelCheckpoint .*q, .*torch"):
            small().fit(episodes=1, callbacks=[saver], verbose=0)

    def test_backup_and_restore_warns(self, tmp_path: Path) -> None:
        with pytest.warns(UserWarning, match=r"BackupAndRestore.*callbacks\.Checkpoint") as caught:
            rewarded([0]).fit(
                steps=1, callbacks=[keras.callbacks.BackupAndRestore(str(tmp_path / "b"), save_freq=100)], verbose=0
            )
        assert [found.filename for found in caught if "BackupAndRestore" in str(found.message)] == [__file__]

    @pytest.mark.backends("torch")
    def test_epochs_of_an_interrupted_fit_go_on(self, tmp_path: Path) -> None:
        rates: dict[int, float] = {}

        def fit(agent: Any, *callbacks: Any) -> None:
            schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-2 * 0.5**epoch)
            record = LambdaCallback(on_episode_end=lambda episode, _: rates.update({episode: agent.learning_rate}))
            backup = noterl.callbacks.BackupAndRestore(tmp_path / "backup.noterl", 1, unit="episodes")
            agent.fit(episodes=5, callbacks=[schedule, record, backup, *callbacks], verbose=0)

        crash = LambdaCallback(on_episode_begin=lambda episode, logs: int("crash") if episode == 3 else None)
        with pytest.raises(ValueError, match="crash"):
            fit(small(0.1), crash)
        fit(small(0.1))
        assert rates == pytest.approx({epoch: 1e-2 * 0.5**epoch for epoch in range(5)})

    @pytest.mark.filterwarnings("ignore:keras.callbacks.BackupAndRestore")
    def test_backup_and_restore_restores_weights_after_a_failure(self, tmp_path: Path) -> None:
        def fail(episode: int, logs: dict[str, Any]) -> None:
            if episode == 4:
                raise RuntimeError("on purpose")

        agent, backup = small(0.1), keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        kept: dict[int, list[np.ndarray]] = {}
        hooks = LambdaCallback(
            on_episode_begin=fail, on_episode_end=lambda episode, logs: kept.update({episode: get_weights(agent.q)})
        )
        with pytest.raises(RuntimeError, match="on purpose"):
            agent.fit(episodes=9, callbacks=[hooks, backup], verbose=0)
        other, restored = small(), []
        note = LambdaCallback(on_episode_begin=lambda episode, logs: restored.append(get_weights(other.q)))
        other.fit(episodes=1, callbacks=[backup, note], verbose=0)
        for ours, theirs in zip(restored[0], kept[3], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert not (tmp_path / "backup").exists()  # Keras deletes the backup of a complete run


class TestFacade:
    def test_facade_has_the_attributes_of_a_model(self) -> None:
        agent = small()
        agent.fit(steps=1, verbose=0)
        facade = Facade(agent)
        assert facade.built is True
        assert facade.optimizer is agent.optimizer
        assert facade.name == "DQN"
        assert facade.history is agent.history
        assert facade.train_function is None
        assert len(facade.trainable_variables) == 4
        assert len(facade.variables) == len(facade.weights) == 8

    def test_layers_are_those_of_keras_networks(self) -> None:
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
        assert [layer.units for layer in Facade(noterl.DQN("CartPole-v1", network=network)).layers] == [3, 2, 3, 2]

    def test_set_weights_changes_actions(self) -> None:
        agent = small()
        facade, observation = Facade(agent), np.array([0.1, -0.2, 0.3, 0.4], np.float32)
        agent.fit(steps=3, verbose=0)
        weights = facade.get_weights()
        action = agent.act(observation)
        facade.set_weights([-weight for weight in weights])
        negated = facade.get_weights()
        np.testing.assert_array_equal(negated[-1], -weights[-1])
        facade.set_weights(weights)
        assert agent.act(observation) == action

    def test_stop_training_can_be_set_and_reset(self) -> None:
        agent = rewarded([0])
        facade = Facade(agent)
        facade.stop_training = True
        assert (agent.stop_training, facade.stop_training) == (True, True)
        facade.stop_training = False
        assert (agent.stop_training, agent.stop_reason) == (False, None)

    def test_file_is_overwritten_only_if_allowed(self, tmp_path: Path) -> None:
        facade = Facade(small())
        for save in (facade.save, facade.save_weights):
            path = tmp_path / save.__name__
            save(filepath=path, overwrite=False)
            with pytest.raises(FileExistsError, match="overwrite"):
                save(filepath=path, overwrite=False)
            save(filepath=path, overwrite=True)

    def test_other_objects_raise(self) -> None:
        with pytest.raises(ValueError, match=r"callbacks: .*class EarlyStopping"):
            rewarded([0]).fit(steps=1, callbacks=[keras.callbacks.EarlyStopping], verbose=0)
