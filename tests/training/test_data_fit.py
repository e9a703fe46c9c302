"""`fit(dataset=, updates=)`: updates on a data set, in epochs, without an environment."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformReward

import noterl
from noterl.callback import Every
from noterl.callbacks import (
    Adapt,
    BackupAndRestore,
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    Evaluate,
    HyperparameterScheduler,
    Rate,
    ReduceLROnPlateau,
    StopOnSteps,
)
from noterl.envs import ClipRewards
from noterl.replay import Hindsight, Prioritized, Replay
from tests.support.masked_env import MaskedWalk
from tests.support.states import differences, same_weights

SPACE = spaces.Box(-np.inf, np.inf, (3,))


def make_data(action_space: Any = None, episodes: int = 6, length: int = 20, seed: int = 0) -> noterl.Dataset:
    """Return random episodes, every second one of which ends by termination."""
    generator = np.random.default_rng(seed)
    action_space = spaces.Discrete(2) if action_space is None else action_space

    def actions() -> np.ndarray:
        if isinstance(action_space, spaces.Discrete):
            return generator.integers(action_space.n, size=length)
        return generator.uniform(-1, 1, (length, *action_space.shape))

    return noterl.Dataset(
        [generator.normal(size=(length + 1, 3)) for _ in range(episodes)],
        [actions() for _ in range(episodes)],
        [generator.normal(size=length) for _ in range(episodes)],
        [number % 2 == 0 for number in range(episodes)],
        observation_space=SPACE,
        action_space=action_space,
    )


def make_agent(kind: str = "dqn", **compiled: Any) -> Any:
    space = spaces.Discrete(2) if kind == "dqn" else spaces.Box(-1, 1, (2,))
    agent = (noterl.DQN if kind == "dqn" else noterl.SAC)((SPACE, space), hidden=(8,), seed=3)
    agent.compile(**{"batch_size": 8, **compiled})
    return agent


def data_of(agent: Any, **options: Any) -> noterl.Dataset:
    return make_data(agent.action_space, **options)


class Tape(Callback):
    """Records the names of all events, and the numbers and logs of epochs."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.ends: list[tuple[int, dict]] = []

    def _handler(self, event: str) -> Any:
        def record(*arguments: Any) -> None:
            if event == "on_epoch_end":
                self.ends.append((arguments[0], dict(arguments[1])))
            self.events.append(event.removeprefix("on_") + (f" {arguments[0]}" if len(arguments) == 2 else ""))

        return record


@pytest.mark.parametrize("kind", ["dqn", "sac"])
def test_agent_learns_from_data_alone(kind: str) -> None:
    agent = make_agent(kind)
    before = agent.get_weights()
    history = agent.fit(dataset=data_of(agent), updates=30, updates_per_epoch=10, verbose=0)
    assert (agent.steps, agent.episodes, agent.updates) == (0, 0, 30)
    assert history.history["updates"] == [10, 20, 30] and np.isfinite(history.history["loss"]).all()
    assert history.stop_reason == "updates" and "reward" not in history.history
    assert any(not np.array_equal(array, before[name]) for name, array in agent.get_weights().items())


@pytest.mark.parametrize("kind", ["dqn", "sac"])
def test_calls_of_any_size_give_the_same_weights(kind: str) -> None:
    agents = [make_agent(kind, steps_per_execution=size) for size in ("auto", 1, 3)]
    for agent in agents:
        agent.fit(dataset=data_of(agent), updates=25, updates_per_epoch=10, verbose=0)
    assert same_weights(agents[0], agents[1]) and same_weights(agents[0], agents[2])


@pytest.mark.backends("torch")
def test_updates_equal_those_on_transitions_that_were_stored_one_by_one() -> None:
    agent = make_agent(replay=Replay(1000, n_step=2))
    data = data_of(agent)
    agent.fit(dataset=data, updates=12, updates_per_epoch=12, verbose=0)
    other = make_agent(replay=Replay(len(data), n_step=2))
    learner, _ = other._parts.build()
    for episode in data.episodes:
        for step in range(len(episode.actions)):
            is_last = step == len(episode.actions) - 1
            ends = is_last and episode.terminated, is_last and not episode.terminated
            before, after = episode.observations[step : step + 2]
            other.replay.add(0, before, episode.actions[step], episode.rewards[step], after, *ends)
    with learner.batches([learner.sample(12)], 12) as batches:
        learner.update(next(batches), 12)
    assert same_weights(agent, other)


@pytest.mark.backends("torch")
def test_epochs_take_the_place_of_episodes() -> None:
    agent = make_agent()
    tape = Tape()
    agent.fit(dataset=data_of(agent), updates=5, updates_per_epoch=2, callbacks=[tape], verbose=0)
    batches = {"batch_begin", "batch_end", "step_end"}
    events = [event for event in tape.events if event.split()[0] not in batches]
    epochs = [f"epoch_{end} {number}" for number in range(3) for end in ("begin", "end")]
    assert events == ["train_begin", *epochs, "train_end"]
    assert [event for event in tape.events if event.startswith("batch_end")] == [f"batch_end {n}" for n in range(5)]
    assert [logs["complete"] for _, logs in tape.ends] == [True, True, False]
    assert [logs["updates"] for _, logs in tape.ends] == [2, 4, 5] and {"loss", "time"} <= tape.ends[0][1].keys()


@pytest.mark.backends("torch")
def test_second_fit_continues_the_epoch_and_the_weights() -> None:
    agent, other = make_agent(), make_agent()
    data = data_of(agent)
    tape = Tape()
    for updates in (15, 10):
        agent.fit(dataset=data, updates=updates, updates_per_epoch=10, callbacks=[tape], verbose=0)
    history = other.fit(dataset=data, updates=25, updates_per_epoch=10, verbose=0)
    assert same_weights(agent, other)
    ends = [(number, logs["complete"]) for number, logs in tape.ends]
    assert ends == [(0, True), (1, False), (1, True), (2, False)]
    assert [logs["loss"] for _, logs in tape.ends if logs["complete"]] == history.history["loss"]


@pytest.mark.backends("torch")
def test_int_target_update_counts_updates_across_fits() -> None:
    agent = make_agent(target_update=7)
    data = data_of(agent)
    copied: list[int] = []
    agent._set(update_target=lambda: copied.append(agent.updates))
    for updates in (10, 11):
        agent.fit(dataset=data, updates=updates, updates_per_epoch=10, verbose=0)
    assert copied == [7, 14, 21]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("is_clipped", [False, True])
def test_arrays_that_change_between_two_fits_are_read_again(is_clipped: bool) -> None:
    agent = noterl.DQN(lambda: ClipRewards(Line()) if is_clipped else Line(), hidden=(8,), seed=1)
    agent.compile(batch_size=8)
    data = make_data()
    for _ in range(2):
        agent.fit(dataset=data, updates=2, verbose=0)
        expected = np.sign(data.rewards) if is_clipped else data.rewards
        assert np.array_equal(agent._parts.data.replay.storage.reward, expected)
        data.rewards *= -2


@pytest.mark.backends("torch")
def test_schedules_count_updates() -> None:
    agent = make_agent(optimizer=noterl.schedules.Linear(0.5, 0.1, steps=8))
    rates: list[float] = []
    record = noterl.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: rates.append(agent.learning_rate))
    agent.fit(dataset=data_of(agent), updates=12, updates_per_epoch=4, callbacks=[record], verbose=0)
    assert rates[::4] == pytest.approx([0.5, 0.3, 0.1])


@pytest.mark.backends("torch")
class TestMemory:
    def test_priorities_of_data_change(self) -> None:
        agent = make_agent(replay=Replay(1000, sampler=Prioritized(alpha=0.6)))
        agent.fit(dataset=data_of(agent), updates=40, updates_per_epoch=40, verbose=0)
        scores = agent._parts.data.replay.sampler.get_state()["scores"]
        assert scores.shape == (120,) and len(np.unique(scores)) > 60
        assert len(agent.replay) == 0

    def test_settings_of_the_sampler_are_followed(self) -> None:
        agent = make_agent(replay=Replay(1000, sampler=Prioritized(alpha=0.6)))

        class Changing(Callback):
            def on_epoch_end(self, epoch: int, logs: Any) -> None:
                self.agent.replay.sampler.alpha = 0.25 * epoch
                self.used = self.agent._parts.data.replay.sampler.alpha

        callback = Changing()
        agent.fit(dataset=data_of(agent), updates=30, updates_per_epoch=10, callbacks=[callback], verbose=0)
        assert callback.used == 0.25  # set at the end of the epoch before
        agent.replay.sampler.beta = 0.9
        agent.fit(dataset=data_of(agent), updates=1, verbose=0)
        assert agent._parts.data.replay.sampler.beta == 0.9

    def test_observations_on_the_device_change_nothing(self) -> None:
        agents = [make_agent(replay=Replay(1000, on_device=on_device)) for on_device in (False, True)]
        for agent in agents:
            agent.fit(dataset=data_of(agent), updates=15, updates_per_epoch=10, verbose=0)
        assert same_weights(*agents)

    @pytest.mark.parametrize("first_axis", [False, True])
    def test_stacks_of_frames_are_stored_once(self, first_axis: bool) -> None:
        frames = np.random.default_rng(0).integers(0, 255, (3, 9, 2, 2), np.uint8)
        stacks = []
        for episode in frames:
            padded = np.concatenate([episode[:1]] * 2 + [episode])
            windows = [padded[step : step + 3] for step in range(len(episode))]
            stacks.append(np.array([w if first_axis else np.moveaxis(w, 0, -1) for w in windows]))
        space = spaces.Box(0, 255, stacks[0].shape[1:], np.uint8)
        actions = [np.zeros(8, np.int64)] * 3
        flags = [True, False, False]
        data = noterl.Dataset(
            stacks, actions, [np.ones(8)] * 3, flags, observation_space=space, action_space=spaces.Discrete(2)
        )
        memories = [Replay(24, frame_stack=k) for k in (None, 3)]
        batches = []
        for memory in memories:
            memory.build(space, spaces.Discrete(2))
            memory.storage.fill(data)
            sample = memory.sample(2, 8, generator=np.random.default_rng(1))
            batches.append(memory.gather(sample, gamma=0.9))
        for name in ("observation", "next_observation", "discount"):
            assert np.array_equal(getattr(batches[0], name), getattr(batches[1], name)), name
        assert memories[1].num_sampleable() == 24

    def test_goals_are_relabeled(self) -> None:
        env = noterl.envs.BitFlip(4)
        seen = [[env.reset(seed=seed)[0]] for seed in range(4)]
        for episode in seen:
            episode += [env.step(step % 4)[0] for step in range(4)]
        data = noterl.Dataset(
            [{name: np.array([step[name] for step in episode]) for name in episode[0]} for episode in seen],
            [np.arange(4)] * 4,
            [np.full(4, -1.0)] * 4,
            [False] * 4,
            observation_space=env.observation_space,
            action_space=env.action_space,
        )
        agent = noterl.DQN(env, hidden=(8,), seed=1)
        agent.compile(batch_size=8, replay=Replay(100, relabel=Hindsight("final", ratio=1.0)))
        agent.fit(dataset=data, updates=4, updates_per_epoch=4, verbose=0)
        memory = agent._parts.data.replay
        batch = memory.gather(memory.sample(8, 8, generator=np.random.default_rng(0)), gamma=0.9)
        assert (batch.reward == 0).any() and agent.updates == 4


@pytest.mark.backends("torch")
class TestCallbacks:
    def test_periodic_callbacks_act_at_their_update(self, tmp_path: Path) -> None:
        agent = make_agent()
        acted: list[int] = []

        class Periodic(Callback):
            every = Every(15, "updates", at="step")

            def on_due(self, logs: Any) -> None:
                acted.append(self.agent.updates)

        agent.fit(dataset=data_of(agent), updates=50, updates_per_epoch=20, callbacks=[Periodic()], verbose=0)
        assert acted == [15, 30, 45]

    def test_evaluations_stop_training(self) -> None:
        agent = make_agent()
        evaluate = Evaluate(lambda: Line(), every=10, unit="updates", episodes=1)
        stop = EarlyStopping(monitor="evaluation_reward_mean", criterion=0.0)
        history = agent.fit(dataset=data_of(agent), updates_per_epoch=5, callbacks=[evaluate, stop], verbose=0)
        assert agent.updates == 10 and evaluate.results["updates"] == [10]
        assert history.stop_reason == "evaluation_reward_mean reached 0.0"

    def test_rows_of_loggers_are_epochs(self, tmp_path: Path) -> None:
        agent = make_agent()
        log = CSVLogger(tmp_path / "log.csv", flush_every=1)
        plateau = ReduceLROnPlateau(factor=0.5, patience=1, monitor="loss", mode="max", min_delta=1e9)
        for _ in range(2):
            agent.fit(dataset=data_of(agent), updates=20, updates_per_epoch=10, callbacks=[log, plateau], verbose=0)
        rows = noterl.utils.tables.read_csv(tmp_path / "log.csv")
        assert [row["updates"] for row in rows] == [10, 20, 30, 40] and [row["episode"] for row in rows] == [0, 1, 2, 3]
        assert rows[0]["reward"] is None and rows[-1]["learning_rate"] < rows[0]["learning_rate"]

    def test_checkpoints_are_of_epochs(self, tmp_path: Path) -> None:
        agent = make_agent()
        checkpoint = Checkpoint(tmp_path, save_freq=2)
        agent.fit(dataset=data_of(agent), updates=40, updates_per_epoch=10, callbacks=[checkpoint], verbose=0)
        assert [file.name[:20] for file in checkpoint.files] == ["episode-000002-loss-", "episode-000004-loss-"]
        loaded = noterl.load(checkpoint.files[-1])
        assert loaded.updates == 40 and same_weights(loaded, agent)

    def test_keras_callbacks_see_epochs(self) -> None:
        agent = make_agent()
        seen: list[tuple[int, float]] = []

        class Recorder(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                seen.append((epoch, logs["loss"]))

        history = agent.fit(dataset=data_of(agent), updates=20, updates_per_epoch=10, callbacks=[Recorder()], verbose=0)
        assert seen == list(enumerate(history.history["loss"]))

    def test_adapt_logs_its_values_for_each_epoch(self) -> None:
        agent = make_agent()
        adapt = Adapt(target_noise=1e-3, num_samples=2, lr=Rate(1e-4, 1e-4, 1e-2), every=5, unit="updates")
        history = agent.fit(dataset=data_of(agent), updates=20, updates_per_epoch=10, callbacks=[adapt], verbose=0)
        assert len(history.history["lr"]) == 2

    @pytest.mark.parametrize(
        "callback",
        [
            Evaluate(every=2),
            Checkpoint("unused", unit="steps"),
            StopOnSteps(5),
            HyperparameterScheduler("gamma", lambda count: 0.9, unit="episodes"),
        ],
        ids=lambda callback: type(callback).__name__,
    )
    def test_callback_that_counts_steps_or_episodes_warns(
        self, callback: Callback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        agent = make_agent()
        with pytest.warns(UserWarning, match=f"^{type(callback).__name__} counts (steps|episodes)") as caught:
            agent.fit(dataset=data_of(agent), updates=2, callbacks=[callback], verbose=0)
        assert caught[0].filename == __file__


class Line(gymnasium.Env):
    """Episodes of one step without reward."""

    observation_space = SPACE
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, True, False, {}


class TestValidation:
    def test_validation_changes_nothing(self) -> None:
        agents = [make_agent("sac"), make_agent("sac")]
        data = data_of(agents[0])
        held_out = data_of(agents[0], seed=9, episodes=2)
        agents[0].fit(dataset=data, updates=20, updates_per_epoch=10, verbose=0)
        history = agents[1].fit(dataset=data, updates=20, updates_per_epoch=10, validation_data=held_out, verbose=0)
        assert same_weights(*agents)
        assert not differences(*(agent.get_state()["generators"] for agent in agents))
        assert len(history.history["validation_loss"]) == 2 and np.isfinite(history.history["validation_loss"]).all()

    @pytest.mark.backends("torch")
    def test_batch_has_the_transitions_that_can_be_sampled(self) -> None:
        """The first transitions of a part of an episode lack older frames."""
        make = lambda: noterl.envs.FrameStack(Line(), 4)  # noqa: E731
        agent = noterl.DQN(make, hidden=(8,), seed=1)
        agent.compile(replay=Replay(10, frame_stack=4), batch_size=4, learning_starts=100)
        agent.fit(steps=15, verbose=0)
        part = noterl.Dataset.load(agent.replay)
        data = noterl.Dataset.record(agent, steps=40, seed=3)
        learner = noterl.DQN(make, hidden=(8,), seed=1)
        learner.compile(replay=Replay(100, frame_stack=4), batch_size=16)
        history = learner.fit(dataset=data, updates=2, updates_per_epoch=2, validation_data=part, verbose=0)
        assert np.isfinite(history.history["validation_loss"]).all()

    def test_validation_loss_is_the_loss_without_dropout(self) -> None:
        def network(rate: float) -> Any:
            layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(rate), keras.layers.Dense(2)]
            return keras.Sequential([keras.Input((3,)), *layers])

        losses = []
        weights: dict[str, np.ndarray] = {}
        for rate in (1e-9, 0.9):
            agent = noterl.DQN((SPACE, spaces.Discrete(2)), network=network(rate), seed=2)
            agent.compile(batch_size=8, optimizer=1e-12)
            if losses:
                agent.set_weights(weights)
            weights = agent.get_weights()
            history = agent.fit(
                dataset=data_of(agent), updates=4, updates_per_epoch=4, validation_data=data_of(agent), verbose=0
            )
            losses.append(history.history["validation_loss"][0])
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


class TestResume:
    @pytest.mark.backends("torch")
    def test_new_memory_has_no_priorities_of_the_old_one(self, tmp_path: Path) -> None:
        agent = make_agent(replay=Replay(50, sampler=Prioritized()))
        data = data_of(agent)
        agent.fit(dataset=data, updates=5, verbose=0)
        agent.compile(replay=Replay(50), batch_size=8)
        agent.save(tmp_path / "agent.noterl")
        loaded = noterl.load(tmp_path / "agent.noterl")
        loaded.fit(dataset=data, updates=5, verbose=0)
        assert loaded.updates == 10

    @pytest.mark.parametrize("sampler", [None, Prioritized()], ids=["uniform", "prioritized"])
    def test_resumed_run_equals_an_uninterrupted_one(self, tmp_path: Path, sampler: Any) -> None:
        def script(stop_at: int | None, path: Path) -> Any:
            agent = make_agent(replay=Replay(1000, sampler=None if sampler is None else Prioritized()))
            backup = BackupAndRestore(path, save_freq=10, unit="updates")

            def fail(batch: int, logs: Any) -> None:
                if batch == stop_at:
                    raise RuntimeError("killed")

            failing = noterl.callbacks.LambdaCallback(on_batch_end=fail)
            history = None
            with contextlib.suppress(RuntimeError):
                history = agent.fit(
                    dataset=data_of(agent), updates=50, updates_per_epoch=20, callbacks=[failing, backup], verbose=0
                )
            return agent, history

        agent, history = script(None, tmp_path / "whole")
        script(33, tmp_path / "parts")
        resumed, continued = script(None, tmp_path / "parts")
        assert resumed.updates == 50 and same_weights(agent, resumed)
        assert not differences(agent.get_state()["dataset"], resumed.get_state()["dataset"])
        assert continued.history["loss"] == history.history["loss"]

    @pytest.mark.backends("torch")
    def test_resumed_checkpoint_keeps_the_mean_of_the_losses(self, tmp_path: Path) -> None:
        """The loss is in the names of the files, so a resumed run that restarts the mean leaves a second file."""

        def train(agent: Any, epochs: int, name: str) -> list[str]:
            checkpoint = Checkpoint(tmp_path / name, save_freq=1, max_save_files=None, window=3)
            agent.fit(
                dataset=data_of(agent), updates=10 * epochs, updates_per_epoch=10, callbacks=[checkpoint], verbose=0
            )
            return [file.name for file in checkpoint.files]

        whole = train(make_agent(), 4, "whole")
        train(make_agent(), 2, "parts")
        assert train(noterl.load(Checkpoint.latest(tmp_path / "parts")), 2, "parts") == whole

    @pytest.mark.backends("torch")
    def test_resumed_run_refuses_other_data(self, tmp_path: Path) -> None:
        backup = BackupAndRestore(tmp_path / "backup", save_freq=10, unit="updates")
        agent = make_agent()
        agent.fit(dataset=data_of(agent), updates=20, callbacks=[backup], verbose=0)
        with pytest.raises(ValueError, match="dataset must hold the data of the run"):
            other = make_agent()
            other.fit(dataset=data_of(agent, seed=5), updates=40, callbacks=[backup], verbose=0)

    @pytest.mark.backends("torch")
    def test_file_holds_priorities_but_no_data(self, tmp_path: Path) -> None:
        agent = make_agent(replay=Replay(1000, sampler=Prioritized()))
        data = data_of(agent)
        agent.fit(dataset=data, updates=30, updates_per_epoch=20, verbose=0)
        agent.save(tmp_path / "agent.noterl")
        loaded = noterl.load(tmp_path / "agent.noterl")
        assert set(loaded.get_state()["dataset"]) == {"identity", "sampler"}
        for each in (agent, loaded):
            each.fit(dataset=data, updates=30, updates_per_epoch=20, verbose=0)
        assert same_weights(agent, loaded)


class TestMixing:
    @pytest.mark.backends("torch")
    def test_each_batch_has_the_share_of_the_data(self) -> None:
        agent = noterl.DQN(lambda: Line(), hidden=(8,), seed=1)
        agent.compile(batch_size=8, learning_starts=10, update_every=5, updates=2)
        data = make_data()
        rewards: list[np.ndarray] = []
        learner = agent._parts.learner
        gather = learner.gather
        learner.gather = lambda sample: rewards.append((batch := gather(sample)).reward) or batch
        agent.fit(steps=40, dataset=data, dataset_share=0.3, verbose=0)
        assert agent.updates == 12 and agent.steps == 40
        # The environment's rewards are 0.
        assert all((reward != 0).sum(axis=1).tolist() == [2] * len(reward) for reward in rewards)

    @pytest.mark.backends("torch")
    @pytest.mark.parametrize("size", [64, 1])
    def test_batch_that_the_data_cannot_fill_has_the_first_size(self, size: int) -> None:
        agent = noterl.DQN(lambda: Line(), hidden=(8,), seed=1)
        agent.compile(batch_size=8, learning_starts=10, update_every=5, updates=2)
        agent.fit(steps=20, dataset=make_data(episodes=1), verbose=0)
        set_size = lambda logs: setattr(agent.schedule, "batch_size", size)  # noqa: E731
        callbacks = [noterl.callbacks.LambdaCallback(on_train_begin=set_size)]
        agent.fit(steps=20, dataset=make_data(episodes=1), callbacks=callbacks, verbose=0)
        assert agent.steps == 40

    @pytest.mark.backends("torch")
    def test_largest_batch_is_the_largest_that_both_can_fill(self) -> None:
        agent = noterl.DQN(lambda: Line(), hidden=(8,), seed=1)
        agent.compile(batch_size=8, learning_starts=10, update_every=5, updates=2)
        found: list[int] = []
        callbacks = [noterl.callbacks.LambdaCallback(on_train_end=lambda logs: found.append(agent.largest_batch(64)))]
        agent.fit(steps=20, dataset=make_data(episodes=2), callbacks=callbacks, verbose=0)
        assert found == [40]  # half of them are all transitions of the agent

    def test_share_leaves_at_least_one_of_each(self) -> None:
        from noterl.learning.data_memory import rows_of_data

        for share, expected in ((0.01, 1), (0.5, 4), (0.99, 7)):
            assert rows_of_data(share, 8) == expected

    @pytest.mark.backends("torch")
    @pytest.mark.parametrize("own", ["clipped", "plain", "spaces"])
    def test_rewards_of_data_are_clipped_as_those_of_the_environment(self, own: str) -> None:
        plain = lambda: TransformReward(Line(), lambda reward: reward + 7.0)  # noqa: E731
        makers: dict[str, Any] = {"clipped": lambda: ClipRewards(plain()), "plain": plain}
        data = noterl.Dataset.record(noterl.DQN(plain, hidden=(8,), seed=1), episodes=20)
        assert data.rewards.min() >= 7
        for name, make in makers.items():
            agent = noterl.DQN(makers.get(own, (SPACE, spaces.Discrete(2))), hidden=(8,), seed=1)
            agent.compile(batch_size=8, learning_starts=10)
            agent.fit(make, steps=20, dataset=data, verbose=0)
            stored = set(agent.replay.storage.reward[:20]), set(agent._parts.data.replay.storage.reward)
            assert stored == (({1.0}, {1.0}) if name == "clipped" else ({7.0}, {7.0}))

    @pytest.mark.backends("torch")
    def test_data_learn_beside_masks_that_came_later(self) -> None:
        agent = noterl.DQN(lambda: MaskedWalk("all"), hidden=(8,), seed=1)
        agent.compile(batch_size=8, learning_starts=10)
        data = noterl.Dataset.record(agent, episodes=10)
        agent.fit(dataset=data, updates=5, verbose=0)
        agent.fit(steps=20, verbose=0)
        updates = agent.updates
        agent.fit(steps=20, dataset=data, verbose=0)
        assert agent.updates > updates

    @pytest.mark.backends("torch")
    def test_run_resumes_in_a_fit_on_other_data(self, tmp_path: Path) -> None:
        def script(path: Path, stop_at: float = np.inf) -> Any:
            agent = noterl.DQN(lambda: Line(), hidden=(8,), seed=1)
            agent.compile(batch_size=8, learning_starts=10)

            def fail(episode: int, logs: Any) -> None:
                if agent.steps > stop_at:
                    raise RuntimeError("killed")

            for seed in (0, 5):
                callbacks = [
                    BackupAndRestore(path, save_freq=1, unit="steps"),
                    noterl.callbacks.LambdaCallback(on_episode_end=fail),
                ]
                agent.fit(steps=40, dataset=data_of(agent, seed=seed), callbacks=callbacks, verbose=0)
            return agent

        whole = script(tmp_path / "whole")
        with pytest.raises(RuntimeError, match="killed"):
            script(tmp_path / "parts", stop_at=55)
        assert same_weights(script(tmp_path / "parts"), whole)

    @pytest.mark.backends("torch")
    def test_schedules_begin_again_with_the_environment_steps(self) -> None:
        agent = noterl.DQN(lambda: Line(), hidden=(8,), seed=1)
        agent.compile(noterl.schedules.Linear(0.5, 0.0, steps=20), batch_size=8, learning_starts=0)
        data = make_data()
        agent.fit(dataset=data, updates=20, verbose=0)
        agent.fit(steps=10, verbose=0)  # without a warning of a rate that has ended
        assert agent.get_rule("learning_rate") > 0
        with pytest.warns(UserWarning, match="learning_rate .* is 0 after"):
            agent.fit(dataset=data, updates=20, verbose=0)

    @pytest.mark.backends("torch")
    def test_offline_training_continues_in_an_environment(self) -> None:
        agent = noterl.DQN(lambda: Line(), hidden=(8,), seed=1, normalize_observation=True)
        agent.compile(batch_size=8, learning_starts=10, replay=Replay(100, sampler=Prioritized()))
        data = make_data()
        agent.fit(dataset=data, updates=10, updates_per_epoch=5, verbose=0)
        statistics = agent.get_state()["normalizers"]["observation"]
        assert np.allclose(statistics["mean"], data.observations.mean(axis=0))
        assert np.allclose(statistics["variance"], data.observations.var(axis=0))
        agent.fit(steps=50, dataset=data, verbose=0)
        assert agent.steps == 50 and agent.updates > 10 and len(agent.replay) == 50
        assert not differences(agent.get_state()["normalizers"]["observation"], statistics)
        copy = noterl.DQN(lambda: Line(), hidden=(8,), seed=1, normalize_observation=True)
        copy.compile(batch_size=8, replay=Replay(100, sampler=Prioritized()))
        copy.set_state(agent.get_state())
        copy.fit(steps=20, verbose=0)
        assert not differences(copy.get_state()["normalizers"]["observation"], statistics)


@pytest.mark.backends("torch")
class TestSpaces:
    def test_rows_without_spaces_get_those_of_the_agent(self, tmp_path: Path) -> None:
        agent = make_agent("sac")
        generator = np.random.default_rng(0)
        rows = {
            "observations": generator.normal(size=(40, 3)),
            "actions": generator.uniform(-0.5, 0.5, (40, 2)),
            "rewards": np.ones(40),
            "terminals": np.arange(40) % 10 == 9,
            "timeouts": np.zeros(40, bool),
        }
        np.savez(tmp_path / "rows.npz", **rows)
        agent.fit(dataset=tmp_path / "rows.npz", updates=4, verbose=0)
        assert agent.updates == 4
        assert noterl.Dataset.load(rows).with_spaces(SPACE, agent.action_space).action_space == agent.action_space

    def test_values_outside_the_agent_s_spaces_are_named(self) -> None:
        rows = {name: np.zeros((4, 3)) for name in ("observations", "next_observations")}
        rows |= {"actions": np.full(4, 7), "rewards": np.ones(4), "terminals": np.zeros(4, bool)}
        with pytest.raises(ValueError, match="actions"):
            make_agent().fit(dataset=noterl.Dataset.load(rows), updates=2)


class TestErrors:
    def test_other_spaces_are_named(self) -> None:
        agent = make_agent("sac")
        with pytest.raises(ValueError, match=r"dataset must have the agent's action_space, Box.*got Discrete\(2\)"):
            agent.fit(dataset=make_data(), updates=5)

    def test_rollout_agent_says_why(self) -> None:
        agent = noterl.PPO((SPACE, spaces.Discrete(2)), hidden=(8,))
        with pytest.raises(ValueError, match="dataset must be None for PPO, which learns from rollouts"):
            agent.fit(dataset=make_data(), updates=5)

    def test_agent_with_a_state_says_why(self) -> None:
        agent = noterl.DQN((SPACE, spaces.Discrete(2)), recurrent="lstm", recurrent_units=4)
        with pytest.raises(ValueError, match="no states of a policy"):
            agent.fit(dataset=make_data(), updates=5)

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"updates": 5}, "updates must be None without dataset"),
            ({"updates": 5, "dataset": 0, "steps": 5}, "steps must be None with updates=5"),
            ({"updates": 5, "dataset": 0, "num_envs": 2}, "num_envs must be None"),
            ({"updates": 0, "dataset": 0}, "updates must be"),
            ({"updates": 5, "dataset": 0, "updates_per_epoch": 0}, "updates_per_epoch"),
            ({"dataset": 0}, "updates must be given"),
            ({"dataset": 3, "updates": 5}, "dataset must be a noterl.Dataset"),
            ({"steps": 5, "dataset": 0, "dataset_share": 1.0}, "dataset_share"),
            ({"steps": 5, "validation_data": 0}, "validation_data must be None"),
        ],
    )
    def test_wrong_argument_is_named(self, arguments: dict[str, Any], match: str) -> None:
        agent = make_agent()
        arguments = {name: make_data() if "data" in name and value == 0 else value for name, value in arguments.items()}
        with pytest.raises(ValueError, match=match):
            agent.fit(**{**arguments, "dataset_share": arguments.get("dataset_share", 0.5)}, verbose=0)
        assert agent.updates == 0

    def test_limit_of_steps_ends_no_fit_on_data(self) -> None:
        agent = make_agent()
        with pytest.raises(ValueError, match="updates must be given, or a callback that stops training"):
            agent.fit(dataset=make_data(), callbacks=[StopOnSteps(5)], verbose=0)

    def test_data_smaller_than_a_batch_are_refused(self) -> None:
        agent = noterl.DQN(lambda: Line(), hidden=(8,), seed=1)
        agent.compile(batch_size=64)
        data = make_data(episodes=1)
        with pytest.raises(ValueError, match=r"dataset must have at least the 64 transitions .* got 20"):
            agent.fit(dataset=data, updates=5)
        with pytest.raises(ValueError, match=r"dataset must have at least the 32 transitions .* got 20"):
            agent.fit(steps=5, dataset=data, dataset_share=0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no update in so few steps
            agent.fit(steps=5, dataset=data, dataset_share=0.1, verbose=0)
        assert agent.steps == 5

    @pytest.mark.backends("torch")
    def test_no_environment_is_opened(self) -> None:
        agent = make_agent()
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            agent.fit(dataset=data_of(agent), updates=5, verbose=0)
        assert agent._parts.session.lanes is None
