"""`fit` with worker processes that collect while the agent learns: bounds, log-probabilities, state and failures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import losses, networks, policies
from noterl.backends import ops
from noterl.collect import WorkerError, Workers
from noterl.collect.workers.shared_memory import SharedWeights
from noterl.envs import BitFlip
from noterl.replay import Hindsight, Prioritized
from tests.integration.test_workers import ROOT, Watcher, _custom_network, dqn, ppo, td3
from tests.support.doubles import RandomWalkEnv
from tests.support.pools import children, segments, wait_until_gone
from tests.support.replay_invariants import check_replay
from tests.support.states import assert_same_state, differences
from tests.support.worker_envs import DiscreteWalkEnv, FaultyEnv, SlowEnv

on_torch = pytest.mark.backends("torch")


def overlapping(processes: int = 2, **settings: Any) -> Workers:
    return Workers(processes, overlap=True, **settings)


class TestReplay:
    @on_torch
    @pytest.mark.parametrize(("make", "most"), [(dqn, 2), (dqn, None), (td3, 12)])
    def test_bounds_and_budgets_hold(self, make: Any, most: int | None) -> None:
        agent, watcher = make(), Watcher()
        settings = overlapping(max_staleness=most)
        history = agent.fit(steps=203, num_envs=3, workers=settings, callbacks=[watcher], verbose=0)
        assert agent.steps == 203 and len(watcher.begun) == len(watcher.ended)
        declared = agent.schedule.updates_per_step
        assert agent.updates == pytest.approx(declared * 193, abs=agent.schedule.updates)
        staleness, ratio = (np.array(history.history[name]) for name in ("staleness", "update_ratio"))
        assert len(history) > 4 and type(history.history["staleness"][0]) is int
        assert staleness.min() >= 0 and staleness.max() <= (256 if most is None else most)
        assert np.all(ratio >= 0) and ratio.max() <= declared + agent.schedule.updates / 10
        check_replay(agent.replay)
        assert not children()

    @on_torch
    def test_without_staleness_the_run_is_that_of_workers_that_wait(self) -> None:
        agents = [dqn(), dqn()]
        for agent, settings in zip(agents, (Workers(2), overlapping(max_staleness=0)), strict=True):
            history = agent.fit(steps=90, num_envs=3, workers=settings, verbose=0)
        assert set(history.history["staleness"]) == {0} and agents[0].updates > 20
        states = [agent.get_state() for agent in agents]
        for state in states:
            del state["lanes"]["pool"]["rows"]
        assert_same_state(*states)

    @on_torch
    def test_budget_of_episodes_and_later_fits(self) -> None:
        agent = dqn()
        history = agent.fit(episodes=9, num_envs=4, workers=overlapping(), verbose=0)
        assert agent.episodes == 9 == len(history) and set(history.history["worker"]) <= {0, 1}
        steps = agent.steps
        agent.fit(steps=13, workers=overlapping(), verbose=0)
        agent.fit(steps=5, workers=2, verbose=0)
        assert agent.steps == steps + 18
        check_replay(agent.replay)

    @on_torch
    @pytest.mark.parametrize("updates", [3, "pass"])
    def test_updates_by_episodes(self, updates: Any) -> None:
        agent = dqn(replay=50, update_every="episode", updates=updates, learning_starts=10)
        history = agent.fit(episodes=12, num_envs=2, workers=overlapping(max_staleness=14), verbose=0)
        assert agent.updates > 10 and max(history.history["staleness"]) <= 14

    @on_torch
    def test_hindsight(self) -> None:
        agent = noterl.DQN(partial(BitFlip, 4), hidden=(8,), seed=5)
        replay = noterl.Replay(200, relabel=Hindsight(), n_step=2, sampler=Prioritized())
        agent.compile(replay=replay, batch_size=8, learning_starts=10)
        agent.fit(steps=150, num_envs=3, workers=overlapping(), verbose=0)
        check_replay(agent.replay)
        assert agent.updates > 0

    def test_saved_in_the_middle_and_continued(self, tmp_path: Path) -> None:
        def save(watcher: Watcher, episode: int) -> None:
            if watcher.agent.steps > 40:
                watcher.agent.save(tmp_path / "agent.noterl")

        agent = dqn()
        agent.fit(episodes=12, num_envs=3, workers=overlapping(), callbacks=[Watcher(save)], verbose=0)
        resumed = dqn(seed=None)
        resumed.restore(tmp_path / "agent.noterl")
        steps, episodes = resumed.steps, resumed.episodes
        watcher = Watcher()
        resumed.fit(steps=60, workers=overlapping(), callbacks=[watcher], verbose=0)
        assert resumed.steps == steps + 60 and resumed.episodes > episodes
        assert all(logs["complete"] for _, logs in watcher.ended[:-3])  # the episodes in flight went on
        check_replay(resumed.replay)

    @on_torch
    def test_weights_that_a_callback_sets_reach_workers(self) -> None:
        def be_greedy(watcher: Watcher, episode: int) -> None:
            weights = watcher.agent.get_weights()
            last = sorted(weights)[-1]  # the bias of the last layer of the last network
            watcher.agent.set_weights({**weights, **{name: 0 * each for name, each in weights.items() if name != last}})

        agent = dqn(policy=policies.EpsGreedyQPolicy(0.0), learning_starts=0, update_every=10**6, replay=2_000)
        agent.fit(episodes=2, num_envs=2, workers=overlapping(), callbacks=[Watcher(be_greedy)], verbose=0)
        stored = len(agent.replay)
        agent.fit(steps=1_200, workers=overlapping(), verbose=0)
        columns = agent.replay.get_state()["columns"]
        observations, actions = (np.concatenate(columns[name]) for name in ("observation", "action"))
        assert len(agent.replay) == stored + 1_200
        assert np.array_equal(actions[-100:], agent.act(observations[-100:]))

    @on_torch
    def test_network_without_numpy_form_alternates(self) -> None:
        agent = noterl.DQN(DiscreteWalkEnv, network=_custom_network(), seed=3)
        agent.compile(replay=200, batch_size=8, learning_starts=10, update_every=4)
        with pytest.warns(RuntimeWarning, match="overlap has no effect"):
            history = agent.fit(steps=24, num_envs=2, workers=overlapping(), verbose=0)
        assert "staleness" not in history.history

    @on_torch
    def test_progress_bar_shows_staleness_and_ratio(self, capsys: pytest.CaptureFixture[str]) -> None:
        dqn().fit(episodes=6, workers=overlapping(1), verbose=1)
        assert re.search(r"staleness \d+, ratio [\d.e-]+", capsys.readouterr().err)


class TestRollouts:
    @on_torch
    def test_log_probabilities_are_those_of_the_policy_that_acted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        published, found = [], []
        publish = SharedWeights.publish

        def record(self: Any, weights: Any, updates: int = 0) -> None:
            published.append(([np.array(weight) for weight in weights], updates))
            publish(self, weights, updates)

        monkeypatch.setattr(SharedWeights, "publish", record)
        agent = ppo()
        agent.build()
        learner = agent._parts.learner
        sample = learner.sample

        def check(updates: int) -> Any:
            result, data = sample(updates), learner.prepared_rows
            raw = learner.rollout.observation.reshape(-1, *agent.observation_shape)
            found.append((raw.copy(), ops.convert_to_numpy(data.action), ops.convert_to_numpy(data.extra["log_prob"])))
            return result

        monkeypatch.setattr(learner, "sample", check)
        agent.fit(steps=180, num_envs=3, workers=overlapping(), verbose=0)
        assert len(found) == 6 == len(published) and [updates for _, updates in published] == [0, 0, 6, 12, 18, 24]
        variables = networks.variables(agent.actor)
        final = [ops.convert_to_numpy(variable.value) for variable in variables]
        for (weights, _), (raw, action, log_prob) in zip(published, found, strict=True):
            count = len(variables)
            mean, variance = weights[count], weights[count + 1]
            observation = np.clip((raw - mean) / np.sqrt(variance + 1e-8), -10, 10).astype(np.float32)
            for variable, weight in zip(variables, weights, strict=False):
                variable.assign(weight)
            own = ops.convert_to_numpy(agent.log_prob(ops.convert_to_tensor(observation), action))
            assert np.allclose(log_prob, own, rtol=1e-4, atol=1e-5)
        for variable, weight in zip(variables, final, strict=True):
            variable.assign(weight)
        others = ops.convert_to_numpy(agent.log_prob(ops.convert_to_tensor(observation), action))
        assert not np.allclose(log_prob, others, atol=1e-4)

    @on_torch
    @pytest.mark.parametrize("kind", ["PPO", "A2C", "recurrent"])
    def test_prepare_corrects_rollouts_of_older_weights(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The targets are those of V-trace. A2C weights the advantages; PPO has a ratio for that."""
        calls: list[list[Any]] = []
        v_trace = losses.v_trace

        def record(*arrays: Any) -> Any:
            calls.append([np.array(ops.convert_to_numpy(each)) for each in arrays])
            return v_trace(*arrays)

        monkeypatch.setattr(losses, "v_trace", record)
        memory = {"recurrent": "gru", "recurrent_units": 4} if kind == "recurrent" else {}
        make: Any = noterl.A2C if kind == "A2C" else noterl.PPO
        agent = make(DiscreteWalkEnv, hidden=(8,), rollout_steps=6, gae_lambda=0.9, seed=3, **memory)
        agent.compile(optimizer=keras.optimizers.SGD(0.3), batch_size="rollout", jit_compile=False)
        agent.build()
        learner = agent._parts.learner
        prepare = learner.prepare
        fields: list[Any] = []

        def check() -> Any:
            rows = prepare()
            count = learner.rollout.num_envs
            shape = (-1, count, learner.sequence_length)
            found = [ops.convert_to_numpy(rows.extra[name]).reshape(shape) for name in ("advantage", "target")]
            fields.append([each.swapaxes(1, 2).reshape(-1, count) for each in found])
            return rows

        monkeypatch.setattr(learner, "prepare", check)
        agent.fit(steps=72, num_envs=3, workers=overlapping(), verbose=0)
        assert len(fields) == 4 and len(calls) == 3  # all rollouts but the first
        for arrays, (advantage, target) in zip(calls, fields[1:], strict=True):
            reward, discount, value, next_value, ratio, continues = arrays
            following = np.concatenate([target[1:], next_value[-1:]])
            next_target = continues * following + (1 - continues) * next_value
            gain = reward + discount * next_target - value
            assert np.allclose(target, value + np.minimum(ratio, 1) * gain, atol=1e-4)
            assert np.allclose(advantage, target - value if kind == "A2C" else gain, atol=1e-4)
            assert np.abs(ratio - 1).max() > 1e-3 and set(continues.round(3).flat) == {0.0, np.float32(0.9)}
        agent.fit(steps=18, num_envs=3, workers=2, verbose=0)
        assert len(fields) == 5 and len(calls) == 3

    @on_torch
    def test_acer_stores_the_policy_that_acted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        agent = noterl.ACER(DiscreteWalkEnv, hidden=(8,), rollout_steps=6, replay_starts=10, seed=3)
        agent.compile(optimizer=keras.optimizers.SGD(0.3), jit_compile=False)
        agent.build()
        learner = agent._parts.learner
        prepare = learner.prepare
        errors: list[float] = []

        def check() -> Any:
            logits = learner.rollout.extra_acting_outputs.reshape(-1, 2)
            powers = np.exp(logits - logits.max(axis=1, keepdims=True))
            rows = prepare()
            behavior = ops.convert_to_numpy(rows.extra["behavior"]).reshape(-1, 2)
            errors.append(float(np.abs(behavior - powers / powers.sum(axis=1, keepdims=True)).max()))
            return rows

        monkeypatch.setattr(learner, "prepare", check)
        agent.fit(steps=72, num_envs=3, workers=overlapping(), verbose=0)
        assert len(errors) == 4 and max(errors) < 1e-6 and agent.updates > 4

    @on_torch
    @pytest.mark.parametrize("kind", [noterl.PPO, noterl.TRPO])
    def test_new_weights_during_a_phase_are_corrected_or_discard_it(self, kind: Any) -> None:
        agent = kind(DiscreteWalkEnv, hidden=(8,), rollout_steps=10, epochs=1, seed=3)
        agent.compile(batch_size=30, jit_compile=False)
        policies_before: list[Any] = []

        def change(watcher: Watcher, episode: int) -> None:
            learner = agent._parts.learner
            if not policies_before and 0 < learner.rollout.round < 10:
                agent.set_weights({name: 1.5 * weight for name, weight in agent.get_weights().items()})
                policies_before.append(learner.acting_policy)

        agent.fit(steps=90, num_envs=3, workers=2, callbacks=[Watcher(change)], verbose=0)
        assert policies_before[0] is not None and agent.updates == (3 if kind is noterl.PPO else 2)

    @on_torch
    def test_run_is_reproducible_and_exact(self) -> None:
        agents = [ppo(), ppo()]
        for agent in agents:
            history = agent.fit(steps=190, num_envs=3, workers=overlapping(), verbose=0)
        assert_same_state(*agents)
        assert agents[0].steps == 190 and agents[0].updates == 36
        assert set(history.history["staleness"]) == {0, 6} and not children()

    @on_torch
    @pytest.mark.parametrize("most", [5, 6])
    def test_staleness_below_a_rollout_alternates(self, most: int) -> None:
        agents = [ppo(), ppo()]
        for agent, settings in zip(agents, (Workers(2), overlapping(max_staleness=most)), strict=True):
            history = agent.fit(steps=100, num_envs=3, workers=settings, verbose=0)
        assert max(history.history["staleness"]) == (0 if most == 5 else 6)
        if most == 5:
            assert_same_state(*agents)

    @on_torch
    def test_agent_that_does_not_correct_staleness_makes_workers_wait(self) -> None:
        agents = [noterl.TRPO(RandomWalkEnv, hidden=(8,), rollout_steps=10, epochs=2, seed=3) for _ in range(2)]
        changes = []

        class Record(noterl.Callback):
            def on_batch_end(self, batch: int, logs: Any) -> None:
                changes.append(agents[1].get_weights()["actor/000"])

        for agent, settings in zip(agents, (Workers(2), overlapping()), strict=True):
            agent.compile(batch_size=10, jit_compile=False)
            agent.fit(steps=190, num_envs=3, workers=settings, callbacks=[Record()] * (agent is agents[1]), verbose=0)
        assert_same_state(*agents)
        assert len({weights.tobytes() for weights in changes}) == 6  # one step of the policy in each rollout

    @on_torch
    def test_long_rollout_is_collected_during_learning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("noterl.collect.workers.lanes.RING_ROUNDS", 3)
        agent, ahead = ppo(), []

        class Busy(noterl.Callback):
            def on_batch_begin(self, batch: int, logs: Any) -> None:
                inboxes = agent._parts.session.lanes.inboxes
                while agent.steps < 90 and any(inbox.rows < 10 * inbox.count for inbox in inboxes):
                    time.sleep(0.002)
                ahead.append(agent.updates)

        agent.fit(steps=90, num_envs=3, workers=overlapping(), callbacks=[Busy()], verbose=0)
        assert ahead == list(range(18))

    @on_torch
    def test_saved_in_the_middle_and_continued(self, tmp_path: Path) -> None:
        def save(watcher: Watcher, episode: int) -> None:
            if watcher.agent.updates == 12:
                watcher.agent.save(tmp_path / "agent.noterl")
                learner = watcher.agent._parts.learner
                kept.append((learner.acting_policy, learner.rollout.get_state()))

        kept: list[Any] = []
        agent = ppo()
        agent.fit(steps=150, num_envs=3, workers=overlapping(), callbacks=[Watcher(save)], verbose=0)
        resumed = ppo(seed=None)
        resumed.restore(tmp_path / "agent.noterl")
        learner = resumed._parts.learner
        assert not differences((learner.acting_policy, learner.rollout.get_state()), kept[-1])
        steps = resumed.steps
        resumed.fit(steps=70, workers=overlapping(), verbose=0)
        assert resumed.steps == steps + 70 and resumed.updates > 12
        state = resumed.get_state()
        state["acting_policy"] = {"weights": {}, "statistics": {}}
        with pytest.raises(ValueError, match="acting_policy"):
            resumed.set_state(state)

    @on_torch
    def test_rollout_in_which_the_budget_ends_has_one_policy(self) -> None:
        agent = ppo()
        agent.fit(steps=75, num_envs=3, workers=overlapping(), verbose=0)
        assert agent._parts.learner.rollout.round == 5 and agent._parts.learner.acting_policy is None
        alone = agent._parts.learner.discard_old_rollout()
        agent.fit(steps=15, num_envs=3, verbose=0)
        assert not alone and agent._parts.learner.rollout.is_full

    @on_torch
    def test_rollout_that_workers_have_begun_is_discarded_without_them(self) -> None:
        agent = ppo()

        class Stop(noterl.Callback):
            stops_training = True

            def on_step_end(self) -> None:
                if agent.steps == 75:
                    agent.stop("enough")

        agent.fit(steps=900, num_envs=3, workers=overlapping(), callbacks=[Stop()], verbose=0)
        assert agent._parts.learner.rollout.round == 5 and agent._parts.learner.acting_policy is not None
        with pytest.warns(RuntimeWarning, match="collected further"):
            agent.fit(steps=15, num_envs=3, verbose=0)
        assert agent._parts.learner.rollout.round == 5 and agent._parts.learner.acting_policy is None
        agent.fit(steps=15, num_envs=3, verbose=0)
        assert agent._parts.learner.rollout.is_full

    @on_torch
    def test_prioritized_rollouts_and_a2c(self) -> None:
        replayed = noterl.PPO(DiscreteWalkEnv, hidden=(8,), rollout_steps=10, epochs=2, seed=3)
        replayed.compile(batch_size=10, replay=noterl.Replay(60, sampler=Prioritized()))
        single = noterl.A2C(DiscreteWalkEnv, hidden=(8,), rollout_steps=5, seed=3)
        for agent in (replayed, single):
            agent.fit(steps=100, num_envs=2, workers=overlapping(), verbose=0)
            assert agent.steps == 100 and agent.updates > 8


class TestFailures:
    @on_torch
    @pytest.mark.parametrize("make", [dqn, ppo])
    def test_killed_worker_cuts_its_episodes_only(self, make: Any) -> None:
        killed: list[int] = []

        def kill(watcher: Watcher, episode: int) -> None:
            if not killed and watcher.agent.steps > 20:
                killed.append(children()[0])
                os.kill(killed[0], signal.SIGKILL)

        agent, watcher = make(), Watcher(kill)
        with pytest.warns(RuntimeWarning, match="SIGKILL"):
            history = agent.fit(steps=1_500, num_envs=4, workers=overlapping(), callbacks=[watcher], verbose=0)
        assert agent.steps == 1_500 and len(watcher.begun) == len(watcher.ended) and len(history) > 20
        cut = [logs for _, logs in watcher.ended[:-4] if not logs["complete"]]
        assert 1 <= len(cut) <= 2 and len({logs["worker"] for logs in cut}) == 1
        if agent.replay is not None:
            check_replay(agent.replay)
        assert not children()

    @on_torch
    @pytest.mark.parametrize("make", [dqn, ppo])
    def test_exception_of_an_environment_ends_the_fit(self, make: Any) -> None:
        env = partial(FaultyEnv, "raise", 30)
        agent = dqn(env) if make is dqn else noterl.PPO(env, hidden=(8,), rollout_steps=10, seed=3)
        with pytest.raises(WorkerError, match=r"worker \d .*ZeroDivisionError"):
            agent.fit(steps=500, num_envs=2, workers=overlapping(), verbose=0)
        assert not children()
        agent.fit(steps=8, workers=overlapping(), verbose=0)

    @on_torch
    @pytest.mark.parametrize(
        ("make", "error"), [(dqn, RuntimeError("callback")), (dqn, SystemExit(3)), (ppo, KeyboardInterrupt())]
    )
    def test_error_in_a_callback_leaves_no_process(self, make: Any, error: BaseException) -> None:
        def fail(watcher: Watcher, episode: int) -> None:
            if watcher.agent.updates:
                raise error

        agent = make()
        with pytest.raises(type(error)):
            agent.fit(steps=2_000, num_envs=2, workers=overlapping(), callbacks=[Watcher(fail)], verbose=0)
        assert not children()
        steps = agent.steps
        agent.fit(steps=30, workers=overlapping(), verbose=0)
        assert agent.steps == steps + 30

    @on_torch
    def test_ctrl_c_and_killed_learner_leave_nothing(self) -> None:
        code = """
import os, signal, sys
from tests.integration.test_overlap import dqn, overlapping
from tests.integration.test_workers import Watcher
from tests.support.doubles import RandomWalkEnv
from tests.support.pools import children

def act(watcher, episode):
    print(*children(), flush=True)
    if sys.argv[1] == "interrupt" and watcher.agent.updates:
        os.kill(os.getpid(), signal.SIGINT)

try:
    dqn().fit(steps=10**9, num_envs=2, workers=overlapping(), verbose=0, callbacks=[Watcher(act)])
except KeyboardInterrupt:
    print("interrupted", children())
"""
        shared = segments()
        command = [sys.executable, "-c", code]
        result = subprocess.run([*command, "interrupt"], cwd=ROOT, capture_output=True, text=True)
        assert result.stdout.splitlines()[-1] == "interrupted []", result
        learner = subprocess.Popen([*command, "kill"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert learner.stdout is not None
        pids = [int(pid) for pid in learner.stdout.readline().split()]
        learner.kill()
        learner.wait()
        learner.stdout.close()
        assert len(pids) == 2
        wait_until_gone(pids)
        assert segments() == shared

    @on_torch
    def test_learning_and_slow_environments_take_place_at_once(self) -> None:
        class Slow(noterl.Callback):
            def on_batch_end(self, batch: int, logs: Any) -> None:
                time.sleep(0.02)

        waited = {}
        for settings in (Workers(1), overlapping(1)):
            agent = dqn(partial(SlowEnv, 0.02), learning_starts=8, update_every=1, updates=1)
            agent.fit(steps=12, workers=settings, verbose=0)
            history = agent.fit(steps=60, workers=settings, callbacks=[Slow()], verbose=0)
            waited[settings.overlap] = history.time_split["workers"]
        assert waited[True] < 0.5 * waited[False]
