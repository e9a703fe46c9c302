"""Training on the device: positions, hooks, budgets, resume, schedules and faults."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces
from keras import ops

import noterl
from noterl.backends.common import GatheredRows, NonFiniteError
from noterl.callback import Callback
from noterl.callbacks import (
    AdaBatch,
    Adapt,
    Checkpoint,
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    Scale,
)
from noterl.collect import DeviceLanes, VectorLanes
from noterl.finders import LRFinder
from noterl.learning.device import make_program
from noterl.learning.device_normalization import DeviceNormalizers
from noterl.schedules import Linear
from noterl.types import Batch, Transition
from tests.support.functional import box_walk, dict_counter, keyed_line, line
from tests.support.parts import actor_of, learner_of
from tests.support.states import assert_same_state

pytestmark = pytest.mark.backends("jax")

LANES, ROUNDS = 3, 4
SIZE = LANES * ROUNDS


def ppo(env: Any = None, *, spe: int | str = "auto", batch_size: Any = 5, **options: Any) -> Any:
    """Return an agent with a schedule; agents with equal arguments share a compiled program."""
    arguments: dict[str, Any] = {
        "rollout_steps": ROUNDS,
        "epochs": 2,
        "hidden": (4,),
        "seed": 3,
        "clip": Linear(0.5, 0.1, 200),
    }
    arguments |= options
    agent = noterl.PPO(line() if env is None else env, **arguments)
    agent.compile(batch_size=batch_size, steps_per_execution=spe)
    return agent


def fit(agent: Any, steps: int | None = None, **options: Any) -> Any:
    return agent.fit(steps=steps, num_envs=LANES, verbose=0, **options)


def program_of(agent: Any) -> Any:
    """Return the program of an agent; nothing is compiled."""
    learner, actor = agent._parts.build()
    learner.open(LANES)
    return make_program(learner, actor, agent.spaces.source, DeviceNormalizers(None, LANES))


def same(first: Any, second: Any) -> bool:
    ours, theirs = first.get_weights(), second.get_weights()
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


class Tape(Callback):
    """Records every event with its values."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_episode_begin(self, episode: int, logs: Any) -> None:
        self.events.append(("begin", episode))

    def on_episode_end(self, episode: int, logs: Any) -> None:
        kept = {name: value for name, value in logs.items() if name not in ("time", "time_of_day")}
        self.events.append(("end", episode, kept))

    def on_batch_end(self, batch: int, logs: Any) -> None:
        self.events.append(("batch", batch, dict(logs)))


class Stopping(Callback):
    """Stops training in one kind of event, and records the ends of episodes before and after it."""

    stops_training = True

    def __init__(self, agent: Any, event: str, number: int) -> None:
        self.agent, self.event, self.number = agent, event, number
        self.before: list[tuple[int, bool]] = []
        self.after: list[tuple[int, bool]] = []
        self.last, self.is_set = -1, False

    def on_episode_begin(self, episode: int, logs: Any) -> None:
        self.stop("begin", episode)

    def on_batch_end(self, batch: int, logs: Any) -> None:
        self.stop("batch", batch)

    def on_episode_end(self, episode: int, logs: Any) -> None:
        (self.after if self.is_set else self.before).append((logs["steps"], logs["complete"]))
        self.last = episode if logs["complete"] else self.last
        self.stop("end", episode)

    def stop(self, event: str, number: int) -> None:
        if (event, number) == (self.event, self.number):
            self.agent.stop(event)
            self.is_set = True


def check_stop(agent: Any, event: str, number: int) -> None:
    """Check that the ends before a stop count, and after it only those of the round in progress.

    The three episodes of `line(limit=2)` end at the steps 4, 5 and 6, then 10, 11 and 12. Updates begin at step 12.
    """
    stopping = Stopping(agent, event, number)
    history = fit(agent, 1000, callbacks=[stopping])
    of_same_round = [] if event == "begin" else [12]
    assert stopping.is_set and len(stopping.after) > 10
    assert all(complete for _, complete in stopping.before)
    assert [steps for steps, complete in stopping.after if complete] == of_same_round
    assert len(history) == agent.episodes == len(stopping.before) + len(of_same_round)
    assert history.stop_reason == f"{event} (at episode {stopping.last})"


@pytest.fixture(scope="module")
def whole() -> Any:
    """An uninterrupted run of 100 steps, its tape and its history."""
    tape, agent = Tape(), ppo()
    history = fit(agent, 100, callbacks=[tape])
    return agent, tape, history


class TestPositions:
    def test_budget_of_steps_is_exact(self, whole: Any) -> None:
        agent, _, history = whole
        assert agent.steps == 100
        assert agent.updates == 100 // SIZE * 2 * 3
        assert history.stop_reason == "steps"

    def test_splitting_at_any_step_changes_nothing(self, whole: Any) -> None:
        agent, tape = ppo(), Tape()
        for steps in (1, 30, 11, 12, 46):
            fit(agent, steps, callbacks=[tape])
        assert agent.steps == 100
        assert same(agent, whole[0])
        ended = [event for event in tape.events if event[0] == "end" and event[2]["complete"]]
        assert ended == [event for event in whole[1].events if event[0] == "end" and event[2]["complete"]]

    def test_updates_in_one_call_do_not_change_results(self, whole: Any) -> None:
        """Schedules are evaluated before each rollout, also within a call."""
        agent, tape = ppo(spe=1), Tape()
        fit(agent, 100, callbacks=[tape])
        assert same(agent, whole[0])
        assert tape.events == whole[1].events
        assert float(agent.clip) == float(whole[0].clip) == pytest.approx(0.5 - 0.4 * 96 / 200)

    def test_program_is_traced_once(self, whole: Any) -> None:
        assert whole[0].trace_counts["device"] == 1
        assert whole[0].trace_counts["update"] == 0

    def test_same_seed_gives_same_run_and_another_seed_does_not(self, whole: Any) -> None:
        other = ppo(seed=4)
        fit(other, 24)
        agent = ppo()
        fit(agent, 24)
        assert not same(agent, other)


class TestParity:
    def test_update_equals_that_of_the_host(self) -> None:
        """A whole rollout is one batch, so the order of rows does not matter."""
        agent = ppo(batch_size="rollout")
        fit(agent, SIZE - 1)
        before = agent.get_weights()
        fit(agent, 1)
        after = agent.get_weights()
        rollout = agent._parts.session.lanes.carry.memory
        host = ppo(batch_size="rollout")
        host.set_weights(before)
        learner, _ = host._parts.build()
        ended = np.array(rollout.ended, np.float32)
        continues = 1 - ended
        continues[-1] = 0
        batch = Batch(
            np.array(rollout.observation),
            np.array(rollout.action),
            np.array(rollout.reward),
            np.array(rollout.next_observation),
            np.where(rollout.terminated, 0, 0.99).astype(np.float32),
            np.ones((ROUNDS, LANES), np.float32),
            np.arange(SIZE, dtype=np.int32).reshape(ROUNDS, LANES),
            {"continues": continues, "ended": ended},
        )
        rows = learner._prepare(batch)
        learner.update(GatheredRows(rows, np.tile(np.arange(SIZE, dtype=np.int32), (2, 1))), 2)
        for name, value in host.get_weights().items():
            np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=2e-6)
            assert not np.array_equal(before[name], value)

    def test_returns_and_lengths_are_those_of_the_steps(self) -> None:
        """The rewards of the rollouts, added in float64, give the returns of the logs."""
        agent, rewards, ends = ppo(), [], []

        class Record(Callback):
            needs_live_updates = True

            def on_step_end(self) -> None:
                rollout = agent._parts.session.lanes.carry.memory
                rewards.append(np.array(rollout.reward))
                ends.append(np.array(rollout.ended))

        history = fit(agent, 20 * SIZE, callbacks=[Record()])
        assert len(rewards) == 20
        total, found = np.zeros(LANES), []
        length = np.zeros(LANES, int)
        for reward, ended in zip(np.concatenate(rewards), np.concatenate(ends), strict=True):
            total, length = total + reward, length + 1
            for lane in np.flatnonzero(ended):
                found.append((total[lane], length[lane]))
                total[lane], length[lane] = 0, 0
        assert history.history["length"] == [each for _, each in found]
        np.testing.assert_allclose(history.history["reward"], [each for each, _ in found], rtol=1e-12)

    def test_minibatches_of_an_epoch_hold_every_row(self) -> None:
        program = program_of(ppo(batch_size=5))
        indices = np.array(program._indices(np.array([1, 2], np.uint32)))
        assert indices.shape == (6, 5)
        for epoch in indices.reshape(2, 15):
            assert set(epoch[:12].tolist()) == set(range(12))
            assert len(set(epoch[12:].tolist())) == 3


class TestHooks:
    def test_each_begin_has_its_end(self, whole: Any) -> None:
        events = whole[1].events
        begun = [event[1] for event in events if event[0] == "begin"]
        ended = [event[1] for event in events if event[0] == "end"]
        assert begun == list(range(len(begun)))
        assert sorted(ended) == begun
        for number in ended:
            places = [k for k, event in enumerate(events) if event[:2] in (("begin", number), ("end", number))]
            assert events[places[0]][0] == "begin"

    def test_updates_and_episodes_are_in_order_of_steps(self, whole: Any) -> None:
        steps = []
        for event in whole[1].events:
            if event[0] == "batch":
                steps.append((event[1] // 6 + 1) * SIZE - 0.5)
            elif event[0] == "end" and event[2]["complete"]:
                steps.append(event[2]["steps"])
                assert event[2]["updates"] == sum(each < event[2]["steps"] for each in range(SIZE - 1, 100, SIZE)) * 6
        assert steps == sorted(steps)

    def test_batches_have_their_own_losses(self, whole: Any) -> None:
        batches = [event for event in whole[1].events if event[0] == "batch"]
        assert [event[1] for event in batches] == list(range(48))
        assert len({event[2]["loss"] for event in batches}) == 48

    def test_loss_of_an_episode_is_the_mean_since_the_last_one(self, whole: Any) -> None:
        losses: list[float] = []
        for event in whole[1].events:
            if event[0] == "batch":
                losses.append(event[2]["loss"])
            elif event[2:] and event[2]["complete"] and losses:
                assert event[2]["loss"] == pytest.approx(np.mean(losses))
                losses = []

    def test_live_updates_make_a_call_one_rollout(self) -> None:
        class Live(LambdaCallback):
            needs_live_updates = True

        steps: list[int] = []
        agent = ppo()
        fit(agent, 40, callbacks=[Live(on_step_end=lambda: steps.append(agent.steps))])
        assert steps == [12, 24, 36, 40]

    def test_hooks_do_not_change_the_run(self, whole: Any) -> None:
        agent = ppo()
        fit(agent, 100)
        assert same(agent, whole[0])


class TestBudgetsOfEpisodesAndStops:
    def test_later_episodes_of_the_call_do_not_count(self) -> None:
        agent, tape = ppo(), Tape()
        history = fit(agent, episodes=5, callbacks=[tape])
        ends = [event for event in tape.events if event[0] == "end"]
        assert len(history) == agent.episodes == 5
        assert [event[2]["complete"] for event in ends[:5]] == [True] * 5
        assert not any(event[2]["complete"] for event in ends[5:])
        assert len(ends) > 5 + LANES
        assert history.stop_reason == f"episodes (at episode {ends[4][1]})"
        assert agent.steps % SIZE == 0
        history = fit(agent, episodes=2)
        assert agent.episodes == 7

    def test_stop_takes_effect_at_the_end_of_the_call(self, tmp_path: Path) -> None:
        agent = ppo()
        stopping = EarlyStopping(trial_count=2, criterion=-100.0)
        history = fit(agent, callbacks=[stopping, Checkpoint(tmp_path)])
        assert "(at episode" in str(history.stop_reason)
        newest = max(tmp_path.glob("*.noterl"), key=lambda path: path.stat().st_mtime)
        saved = noterl.load(newest)
        assert saved.steps == agent.steps
        assert same(saved, agent)

    @pytest.mark.parametrize(("event", "number"), [("begin", 5), ("batch", 1), ("end", 4)])
    def test_ends_after_the_round_of_a_stop_do_not_count(self, event: str, number: int) -> None:
        check_stop(ppo(line(limit=2)), event, number)


class TestResume:
    @pytest.mark.parametrize("episode", [0, 3, 9])
    def test_run_saved_in_a_hook_continues_exactly(self, whole: Any, tmp_path: Path, episode: int) -> None:
        agent, tape = ppo(), Tape()
        path = tmp_path / "run.noterl"
        count: list[int] = []

        def save(number: int, logs: Any) -> None:
            count.append(number)
            if len(count) == episode + 1:
                agent.save(path)

        fit(agent, 80, callbacks=[LambdaCallback(on_episode_end=save)])
        restored = ppo()
        restored.restore(path)
        fit(restored, 100 - restored.steps, callbacks=[tape])
        assert restored.steps == 100
        assert restored.updates == whole[0].updates
        assert same(restored, whole[0])
        ended = [event for event in tape.events if event[0] == "end" and event[2]["complete"]]
        expected = [event for event in whole[1].events if event[0] == "end" and event[2]["complete"]]
        assert ended == expected[episode + 1 :]

    @pytest.mark.parametrize("callbacks", [(), ("host",)])
    def test_state_with_typed_keys_continues_exactly(self, tmp_path: Path, callbacks: Any) -> None:
        hosted = [_Hosted()] if callbacks else []
        whole, first, second = (ppo(keyed_line()) for _ in range(3))
        fit(whole, 60, callbacks=hosted)
        fit(first, 24, callbacks=hosted)
        first.save(tmp_path / "run.noterl")
        second.restore(tmp_path / "run.noterl")
        fit(second, 36, callbacks=hosted)
        assert same(second, whole)

    def test_state_of_host_environments_restarts_the_episodes(self) -> None:
        host = ppo()
        fit(host, 24, callbacks=[_Hosted()])
        device, state = ppo(), host.get_state()
        fit(device, 24)
        state = {**device.get_state(), "lanes": state["lanes"]}
        device.set_state(state)
        with pytest.warns(RuntimeWarning, match="on the host"):
            fit(device, 12)
        assert device.steps == 36

    def test_new_weights_begin_a_new_rollout(self) -> None:
        agent = ppo()
        fit(agent, 8)
        agent.set_weights(ppo(seed=4).get_weights())
        fit(agent, SIZE - 8)
        assert (agent.steps, agent.updates, agent._parts.session.lanes.position) == (SIZE, 0, SIZE - 8)
        agent.set_weights(agent.get_weights())
        fit(agent, 8)
        assert agent.updates == 6

    @pytest.mark.filterwarnings("ignore:could not restore")  # the episodes of the host
    def test_rollout_of_the_host_is_discarded(self) -> None:
        agent = ppo()
        host = noterl.Callback()
        host.needs_host = True
        fit(agent, 3 * LANES, callbacks=[host])
        assert len(learner_of(agent).rollout) == 3 * LANES
        fit(agent, SIZE)
        assert agent.updates > 0 and len(learner_of(agent).rollout) == 0

    def test_another_number_of_environments_starts_new_episodes(self) -> None:
        agent = ppo()
        fit(agent, 30)
        agent.fit(steps=8, num_envs=LANES - 1, verbose=0)
        assert agent.steps == 38
        assert agent._parts.session.lanes.position == 0

    def test_malformed_state_is_refused(self) -> None:
        agent = ppo()
        fit(agent, 30)
        state = agent.get_state()
        state["lanes"]["device"]["position"] = -1
        with pytest.raises(ValueError, match="position"):
            agent.set_state(state)


@pytest.fixture(scope="module")
def a2c() -> Any:
    """Return the weights at the start, the agent and the history of a run with Box actions."""
    agent = noterl.A2C(box_walk(), rollout_steps=ROUNDS, hidden=(4,), log_std=2.0, seed=1)
    return agent.get_weights(), agent, fit(agent, 50)


@pytest.fixture(scope="module")
def trpo() -> Any:
    """Return an agent trained on dict observations."""
    agent = noterl.TRPO(dict_counter(), rollout_steps=ROUNDS, hidden=(4,), seed=1)
    fit(agent, 4 * SIZE)
    return agent


class TestAgents:
    def test_a2c_learns_on_the_device(self, a2c: Any) -> None:
        before, agent, _ = a2c
        assert isinstance(agent._parts.session.lanes, DeviceLanes)
        assert agent.updates == 4
        assert any(not np.array_equal(before[name], value) for name, value in agent.get_weights().items())

    def test_box_actions_are_clipped_for_the_environment(self, a2c: Any) -> None:
        _, agent, history = a2c
        rollout = agent._parts.session.lanes.carry.memory
        assert rollout.action.dtype == np.float32
        assert np.abs(rollout.action).max() > 1.0
        assert max(history.history["length"]) <= 4

    def test_trpo_learns_on_the_device(self, trpo: Any) -> None:
        assert isinstance(trpo._parts.session.lanes, DeviceLanes)
        assert trpo.updates > 0
        assert all(np.isfinite(value).all() for value in trpo.get_weights().values())

    def test_dict_observations_are_encoded_as_on_the_host(self, trpo: Any) -> None:
        carry = trpo._parts.session.lanes.carry
        time = np.array(carry.states)
        host = trpo.spaces.encoder({"place": np.stack([time, -time], -1).astype(np.float32), "choice": time % 3})
        np.testing.assert_array_equal(carry.observations, host)

    def test_other_agents_step_a_vector_environment(self) -> None:
        agent = noterl.DQN(line(), hidden=(4,), seed=1)
        agent.compile(replay=noterl.Replay(100, sampler=noterl.replay.Prioritized()), learning_starts=100)
        fit(agent, 30)
        assert isinstance(agent._parts.session.lanes, VectorLanes)

    def test_evaluate_plays_on_the_host(self, whole: Any) -> None:
        result = whole[0].evaluate(episodes=3)
        assert result["lengths"].max() <= 7

    def test_new_seed_restarts_the_episodes(self) -> None:
        first, second = ppo(), ppo()
        second.set_weights(first.get_weights())
        fit(first, 30)
        fit(first, 24, seed=8)
        assert first.steps == 54
        assert first._parts.session.lanes.position == 0


class Wandering(noterl.Agent):
    """Learns from rollouts of a noisy deterministic policy."""

    memory, head = "rollout", noterl.heads.Deterministic()
    rollout_steps = 8

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.actor = noterl.networks.mlp(self.observation_size, [4], self.action_size)

    def forward(self, observation: Any) -> Any:
        return self.actor(observation)

    def loss(self, batch: Any) -> Any:
        return ops.mean(ops.square(self.actor(batch.observation)))


def test_fields_of_info_are_stored_on_the_host() -> None:
    class Weighted(noterl.A2C):
        info_spec = {"importance": ((), np.float32, 1.0)}  # noqa: RUF012

        def prepare(self, rollout: Batch) -> dict[str, Any]:
            assert "importance" in rollout.extra
            return super().prepare(rollout)

    agent = Weighted(line(), hidden=(4,), rollout_steps=8, seed=1)
    fit(agent, 24)
    assert isinstance(agent._parts.session.lanes, VectorLanes) and agent.updates


def test_noise_of_rollouts_anneals_as_on_the_host() -> None:
    found = []
    for callbacks in ([], [_Hosted()]):
        agent = Wandering(box_walk(), seed=1)
        noise = noterl.noise.GaussianWhiteNoiseProcess(sigma=1.0, sigma_min=0.0, n_steps_annealing=96, size=1)
        agent.compile(noise=noise, batch_size=24)
        for _ in range(2):
            fit(agent, 24, callbacks=callbacks)
        found.append((type(agent._parts.session.lanes), agent.noise.current_sigma))
    assert found == [(DeviceLanes, pytest.approx(0.5)), (VectorLanes, pytest.approx(0.5))]


class Discounting(noterl.Agent):
    """Returns the mean discount of a batch as its loss; `gamma` is a plain number."""

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.network = noterl.networks.mlp(self.observation_size, (4,), self.action_size)
        self.gamma = 0.5

    def forward(self, observation: Any) -> Any:
        return self.network(observation)

    def loss(self, batch: Any) -> Any:
        return ops.mean(batch.discount) + 0.0 * ops.mean(self.network(batch.observation))


class DiscountingRollouts(Discounting):
    memory, head, rollout_steps = "rollout", noterl.heads.Categorical(), ROUNDS


class DiscountingReplay(Discounting):
    memory, head = "replay", noterl.heads.Q()


class TestPlainDiscount:
    @pytest.mark.parametrize("kind", [DiscountingRollouts, DiscountingReplay])
    def test_assignment_between_fits_takes_effect(self, kind: type[Discounting]) -> None:
        agent = kind(line(), seed=1)
        if kind is DiscountingReplay:
            agent.compile(batch_size=4, learning_starts=SIZE - 1, update_every=SIZE, updates=1)
        losses: list[float] = []
        record = LambdaCallback(on_batch_end=lambda batch, logs: losses.append(logs["loss"]))
        fit(agent, SIZE, callbacks=[record])
        assert 0.0 < losses[-1] <= 0.5
        agent.gamma = 0.0
        fit(agent, SIZE, callbacks=[record])
        assert losses[-1] == 0.0
        fit(agent, SIZE)
        assert agent.trace_counts["device"] == 2
        assert isinstance(agent._parts.session.lanes, DeviceLanes)


class TestStopsAndFaults:
    def test_target_kl_ends_the_updates_on_a_rollout(self) -> None:
        agent = ppo(target_kl=1e-9)
        tape = Tape()
        fit(agent, 36, callbacks=[tape])
        assert 0 < agent.updates < 18
        assert sum(event[0] == "batch" for event in tape.events) == agent.updates

    @pytest.mark.parametrize("batch_size", ["rollout", 5])
    def test_loss_that_is_not_finite_is_named_and_undone(self, batch_size: Any) -> None:
        agent = ppo(batch_size=batch_size)
        fit(agent, SIZE + LANES)
        weights, updates = agent.get_weights(), agent.updates
        lanes = agent._parts.session.lanes
        rollout = lanes.carry.memory
        lanes.carry = lanes.carry._replace(memory=rollout._replace(reward=rollout.reward.at[0, 0].set(np.nan)))
        with pytest.raises(NonFiniteError) as error:
            fit(agent, 60)
        assert agent.steps == error.value.step == 2 * SIZE
        # Minibatches without the row are learned from; the first one with it is undone.
        assert error.value.update == agent.updates == (updates if batch_size == "rollout" else agent.updates)
        changed = any(not np.array_equal(weights[name], value) for name, value in agent.get_weights().items())
        assert changed == (agent.updates > updates)
        assert all(np.isfinite(value).all() for value in agent.get_weights().values())
        before = agent.updates
        fit(agent, SIZE)
        assert agent.updates == before + (2 if batch_size == "rollout" else 6)


class TestCallbacksThatNeedTheHost:
    """Their hooks must run between updates, or they read the last rollout."""

    def test_live_schedule_sets_the_rate_of_each_update(self) -> None:
        host, device = ppo(), ppo()
        schedule = LearningRateScheduler(lambda updates: 1e-2 / (1 + updates), unit="updates", live=True)
        fit(device, 48, callbacks=[schedule])
        fit(host, 48, callbacks=[schedule, _Hosted()])
        assert isinstance(device._parts.session.lanes, VectorLanes) and same(device, host)
        assert device.learning_rate == pytest.approx(1e-2 / device.updates)

    def test_finder_trains_each_point_with_its_own_rate(self) -> None:
        found: list[Any] = []
        agent = ppo()
        watch = LambdaCallback(
            on_batch_end=lambda *_: found.append((agent.learning_rate, type(agent._parts.session.lanes)))
        )
        LRFinder(agent).find(updates=16, metric="loss", callbacks=[watch], num_envs=LANES)
        rates, kinds = zip(*found, strict=True)
        assert list(rates[:16]) == sorted(set(rates[:16])) and set(kinds) == {VectorLanes}

    @pytest.mark.parametrize("kind", [AdaBatch, functools.partial(Adapt, target_noise=2.0)], ids=["AdaBatch", "Adapt"])
    def test_gradient_noise_of_rollouts_is_measured(self, kind: Any) -> None:
        history = fit(ppo(), 60, callbacks=[kind(num_samples=2, batch=Scale(min=2, max=8))])
        assert "gradient_noise" in history.history

    def test_they_run_on_the_device_with_a_replay_memory(self) -> None:
        agent = noterl.DQN(line(), hidden=(4,), seed=3)
        agent.compile(replay=noterl.Replay(100), batch_size=4, learning_starts=20)
        history = fit(agent, 60, callbacks=[AdaBatch(2, batch=Scale(min=2, max=8))])
        assert isinstance(agent._parts.session.lanes, DeviceLanes) and "gradient_noise" in history.history


class _Hosted(Callback):
    needs_host = True


MEMORY: dict[str, Any] = {"recurrent": "lstm", "recurrent_units": 5, "sequence_length": 2}


def device_rollout(agent: Any) -> tuple[Any, dict[str, Any]]:
    """Return the rollout that the device has collected last, and the states of the policy before its steps."""
    rollout = agent._parts.session.lanes.carry.memory
    states = {name: np.array(rollout.policy[f"state.{name}"]) for name in agent.state_spec}
    return rollout, states


class TestMemory:
    def test_states_are_those_of_the_episodes(self) -> None:
        agent = ppo(batch_size=4, **MEMORY)
        agent.set_rule("learning_rate", 0.0)  # a variable of the program that the next tests use, too
        rounds: list[tuple[Any, ...]] = []

        class Record(Callback):
            needs_live_updates = True

            def on_step_end(self) -> None:
                rollout, states = device_rollout(agent)
                rounds.extend(
                    (rollout.observation[t], {n: v[t] for n, v in states.items()}, rollout.policy["starts"][t])
                    for t in range(ROUNDS)
                )
                ends.extend(np.array(rollout.ended))

        ends: list[np.ndarray] = [np.ones(LANES, bool)]
        fit(agent, 6 * SIZE, callbacks=[Record()])
        forward, after = actor_of(agent).forward, None
        assert len(rounds) == 6 * ROUNDS and isinstance(agent._parts.session.lanes, DeviceLanes)
        for (observations, states, starts), ended in zip(rounds, ends, strict=False):
            assert (np.array(starts) == ended).all()
            for name, values in states.items():
                assert not values[ended].any() and values[~ended].any(axis=1).all()
                if after is not None:
                    np.testing.assert_allclose(values[~ended], after[name][~ended], atol=1e-5)
            _, after = forward.with_state(np.array(observations), states)

    def test_update_equals_that_of_the_host(self) -> None:
        agent, host = (ppo(batch_size="rollout", **{**MEMORY, "clip": 0.2}) for _ in range(2))
        for each in (agent, host):
            each.compile(keras.optimizers.SGD(0.1), batch_size="rollout")
        fit(agent, 2 * SIZE - 1)
        before = agent.get_weights()
        lanes = agent._parts.session.lanes
        learner_state = {name: np.array(value) for name, value in lanes.carry.learner_state.items()}
        assert all(value.any() for value in learner_state.values())
        fit(agent, 1)
        after = agent.get_weights()
        rollout, states = device_rollout(agent)
        host.set_weights(before)
        learner: Any = learner_of(host)
        learner.open(LANES)
        learner.rollout.learner_state = learner_state
        for t in range(ROUNDS):
            fields = {f"state.{name}": value[t] for name, value in states.items()}
            fields["starts"] = np.array(rollout.policy["starts"][t])
            learner.rollout.begin_round(np.array(rollout.observation[t]), np.array(rollout.action[t]), fields)
            for lane in range(LANES):
                outcome = (np.array(array[t, lane]) for array in (rollout.reward, rollout.next_observation))
                terminated = bool(rollout.terminated[t, lane])
                truncated = bool(rollout.ended[t, lane]) and not terminated
                learner.rollout.add(Transition(lane, None, None, *outcome, terminated, truncated))
            learner.rollout.end_round()
        sample = learner.sample(2)
        with learner.batches([sample], 2) as batches:
            learner.update(next(batches), 2)
        for name, value in host.get_weights().items():
            np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=2e-6)
            assert not np.array_equal(before[name], value)
        for name, value in learner.rollout.learner_state.items():
            np.testing.assert_allclose(np.array(lanes.carry.learner_state[name]), value, rtol=1e-4, atol=1e-5)

    def test_splits_and_files_change_nothing(self, tmp_path: Path) -> None:
        whole, agent, other = (ppo(batch_size=4, **MEMORY) for _ in range(3))
        fit(whole, 100)
        for steps in (1, 30, 11, 12, 46):
            fit(agent, steps)
            agent.save(tmp_path / "run.noterl")
            agent, other = other, agent
            agent.restore(tmp_path / "run.noterl")
        assert_same_state(agent, whole)
        assert agent.updates == 100 // SIZE * 2 * 3

    def test_minibatches_of_an_epoch_hold_every_sequence(self) -> None:
        program = program_of(ppo(batch_size=8, **MEMORY))
        indices = np.array(program._indices(np.array([1, 2], np.uint32)))
        assert indices.shape == (4, 4)
        assert all(set(epoch[:6].tolist()) == set(range(6)) for epoch in indices.reshape(2, 8))

    def test_agents_with_another_memory_step_a_vector_environment(self) -> None:
        agent = noterl.DQN(line(), hidden=(4,), recurrent="gru", recurrent_units=4, seed=3)
        agent.compile(replay=200)
        with pytest.warns(UserWarning, match="fit ended"):
            fit(agent, 12)
        assert isinstance(agent._parts.session.lanes, VectorLanes)


def test_schedule_of_a_policy_has_the_value_of_the_last_round() -> None:
    from noterl.policies import EpsGreedyQPolicy

    def pqn() -> noterl.PQN:
        agent = noterl.PQN(line(), hidden=(4,), rollout_steps=4, epochs=1, seed=1)
        agent.compile(batch_size=8, policy=EpsGreedyQPolicy(Linear(1.0, 0.0, 1000)))
        return agent

    whole, split = pqn(), pqn()
    whole.fit(steps=12, num_envs=2, verbose=0)
    for steps in (8, 4):
        split.fit(steps=steps, num_envs=2, verbose=0)
    assert whole.policy.eps == split.policy.eps == pytest.approx(0.99)


def test_masks_in_observations_are_honoured_on_the_host() -> None:
    """Only the number that the observation names is legal, and has the reward 1."""
    jnp = pytest.importorskip("jax").numpy

    def observed(number: Any) -> Any:
        return {"observation": jnp.zeros(2), "action_mask": jnp.zeros(4, jnp.int8).at[number].set(1)}

    def reset(key: Any) -> Any:
        return observed(2), (jnp.int32(2), jnp.int32(0))

    def step(key: Any, state: Any, action: Any) -> Any:
        number, count = (state[0] + 1) % 4, state[1] + 1
        return observed(number), (number, count), jnp.where(action == state[0], 1.0, -1.0), count >= 10, False

    space = spaces.Dict({"observation": spaces.Box(0, 9, (2,)), "action_mask": spaces.MultiBinary(4)})
    env = noterl.envs.functional(reset, step, space, spaces.Discrete(4))
    agent = noterl.PPO(env, hidden=(4,), rollout_steps=8, epochs=1, seed=1)
    assert set(agent.fit(steps=80, num_envs=2, verbose=0).history["reward"]) == {10.0}
