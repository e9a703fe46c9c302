"""`fit` with worker processes: results, budgets, events, state and failures."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import noterl
from noterl import Callback, policies
from noterl.callback import Every
from noterl.collect import WorkerError, Workers
from noterl.envs import BitFlip
from noterl.envs.games import TicTacToe
from noterl.noise import OrnsteinUhlenbeckProcess
from noterl.replay import Hindsight, Prioritized
from tests.support.doubles import ListTeam, RandomWalkEnv
from tests.support.pools import children, wait_until_gone
from tests.support.replay_invariants import check_replay
from tests.support.states import assert_same_state, differences
from tests.support.worker_envs import DiscreteWalkEnv, FaultyEnv, MaskedEnv, SlowEnv

pytestmark = pytest.mark.backends("torch")

ROOT = Path(__file__).parents[2]


def dqn(env: Any = DiscreteWalkEnv, seed: int | None = 3, **changes: Any) -> noterl.DQN:
    agent = noterl.DQN(env, hidden=(8,), seed=seed)
    settings: dict[str, Any] = {
        "policy": policies.LinearEpsGreedyPolicy(1.0, 0.1, steps=100),
        "replay": noterl.Replay(300, n_step=3, sampler=Prioritized()),
        "batch_size": 8,
        "learning_starts": 10,
        "update_every": 4,
        "updates": 2,
        "target_update": 20,
    }
    agent.compile(**{**settings, **changes})
    return agent


def ppo(env: Any = RandomWalkEnv, seed: int | None = 3) -> noterl.PPO:
    agent = noterl.PPO(env, hidden=(8,), rollout_steps=10, epochs=2, seed=seed, normalize_observation=True)
    agent.compile(batch_size=10, jit_compile=False)  # tracing takes longer than a short run
    return agent


def td3(env: Any = RandomWalkEnv, seed: int | None = 3) -> noterl.TD3:
    agent = noterl.TD3(env, hidden=(8,), seed=seed, normalize_observation=True)
    noise = OrnsteinUhlenbeckProcess(0.15, sigma=0.5, sigma_min=0.1, n_steps_annealing=60)
    agent.compile(
        noise=noise, replay=200, batch_size=8, learning_starts=10, update_every=6, updates=2, jit_compile=False
    )
    return agent


MAKERS = {"DQN": dqn, "PPO": ppo, "TD3": td3}


class Watcher(Callback):
    """Records events, and calls a function at the end of each episode."""

    def __init__(self, action: Any = None) -> None:
        self.action, self.ended, self.begun = action, [], []

    def on_episode_begin(self, episode: int, logs: Any) -> None:
        self.begun.append(episode)

    def on_episode_end(self, episode: int, logs: Any) -> None:
        self.ended.append((episode, dict(logs)))
        if self.action is not None:
            self.action(self, episode)


class TestResults:
    @pytest.mark.parametrize(
        "kind", [pytest.param("DQN", marks=pytest.mark.backends("tensorflow", "jax", "torch")), "PPO", "TD3"]
    )
    def test_run_is_reproducible_and_resumes_exactly(self, kind: str, tmp_path: Path) -> None:
        whole, parts = (MAKERS[kind]() for _ in range(2))
        whole.fit(steps=80, num_envs=3, workers=2, verbose=0)
        parts.fit(steps=37, num_envs=3, workers=2, verbose=0)
        parts.save(tmp_path / "agent.noterl")
        resumed = MAKERS[kind](seed=None)
        resumed.restore(tmp_path / "agent.noterl")
        resumed.fit(steps=43, workers=2, verbose=0)
        assert whole.updates > 5
        assert_same_state(whole, resumed)
        assert not children()

    def test_observing_callback_does_not_change_the_run(self) -> None:
        plain, watched = dqn(), dqn()
        plain.fit(episodes=12, num_envs=2, workers=Workers(2, collect=5), verbose=0)
        callback = Watcher(lambda watcher, episode: watched.get_state())
        watched.fit(episodes=12, num_envs=2, workers=Workers(2, collect=5), callbacks=[callback], verbose=0)
        assert_same_state(plain, watched)

    def test_network_without_numpy_form_gives_the_run_without_workers(self) -> None:
        agents = [noterl.DQN(DiscreteWalkEnv, network=_custom_network(), seed=3) for _ in range(2)]
        initial = agents[0].get_weights()
        for agent, workers in zip(agents, (0, 2), strict=True):
            agent.compile(replay=200, batch_size=8, learning_starts=10, update_every=4)
            agent.set_weights(initial)
            with pytest.warns(RuntimeWarning, match="NumPy") if workers else contextlib.nullcontext():
                history = agent.fit(steps=48, num_envs=4, workers=workers, verbose=0)
            assert ("workers" in history.time_split) == bool(workers)
        first, second = (agent.get_state() for agent in agents)
        first["lanes"].pop("pool", None), second["lanes"].pop("pool")
        assert_same_state(first, second)

    def test_hindsight_and_teams(self) -> None:
        agent = noterl.DQN(partial(BitFlip, 4), hidden=(8,), seed=5)
        agent.compile(replay=noterl.Replay(200, relabel=Hindsight(), n_step=2), batch_size=8, learning_starts=10)
        agent.fit(steps=60, num_envs=3, workers=2, verbose=0)
        check_replay(agent.replay)
        assert agent.updates > 0

        class Shared(noterl.MADDPG):
            def team_reward(self, rewards: np.ndarray, terminations: np.ndarray) -> Any:
                return rewards.sum()

        team = Shared(ListTeam, hidden=(4,), seed=5)
        team.compile(replay=200, batch_size=8, learning_starts=10, update_every=20)
        history = team.fit(episodes=16, num_envs=2, workers=2, verbose=0)
        names = [f"reward/{name}" for name in team.names]
        total = np.sum([history.history[name] for name in names], axis=0)
        assert np.allclose(history.history["reward"], total) and team.updates > 0

    def test_exploration_of_workers_differs(self) -> None:
        agent = dqn(policy=policies.EpsGreedyQPolicy(1.0), learning_starts=0)
        agent.fit(steps=40, num_envs=2, workers=2, verbose=0)
        states = agent.get_state()["generators"]["states"]
        assert "worker/0/exploration" in states and "worker/1/exploration" in states
        actions = [lane["actions"] for lane in agent.get_state()["lanes"]["lanes"]]
        assert not np.array_equal(*(each[: min(map(len, actions))] for each in actions))


class TestFit:
    def test_budgets_are_exact_and_logs_name_the_worker(self) -> None:
        agent = dqn()
        watcher = Watcher()
        history = agent.fit(episodes=7, num_envs=4, workers=2, callbacks=[watcher], verbose=0)
        assert agent.episodes == 7 == len(history) and history.stop_reason == "episodes"
        assert set(history.history["worker"]) == {0, 1} and type(history.history["worker"][0]) is int
        assert history.time_split["workers"] > 0 and len(watcher.begun) == len(watcher.ended)
        steps = agent.steps
        agent.fit(steps=11, workers=2, verbose=0)
        assert agent.steps == steps + 11
        check_replay(agent.replay)
        agent.fit(steps=5, verbose=0, num_envs=2)
        assert agent.steps == steps + 16

    def test_progress_bar_shows_the_time_of_workers(self, capsys: pytest.CaptureFixture[str]) -> None:
        dqn().fit(episodes=2, workers=1, verbose=1)
        assert re.search(r"callbacks \d+% workers \d+%", capsys.readouterr().err)

    def test_default_is_one_environment_for_each_worker(self) -> None:
        agent = dqn()
        agent.fit(steps=9, workers=3, verbose=0)
        assert len(agent.get_state()["lanes"]["lanes"]) == 3

    def test_state_without_rounds_ahead_continues_without_workers(self) -> None:
        agent = dqn()
        agent.fit(steps=20, num_envs=2, workers=2, verbose=0)
        before = [lane["seed"] for lane in agent.get_state()["lanes"]["lanes"]]
        agent.fit(steps=2, verbose=0)
        assert [lane["seed"] for lane in agent.get_state()["lanes"]["lanes"]] == before

    @pytest.mark.parametrize("between_fits", [True, False])
    def test_changed_exploration_reaches_workers(self, between_fits: bool) -> None:
        def be_greedy(watcher: Watcher, episode: int) -> None:
            if not between_fits:
                watcher.agent.policy.eps = 0.0

        agent = dqn(policy=policies.EpsGreedyQPolicy(1.0), learning_starts=0, update_every=10**6)
        settings = Workers(2, collect=3)
        agent.fit(episodes=2, num_envs=2, workers=settings, callbacks=[Watcher(be_greedy)], verbose=0)
        agent.policy.eps = 0.0
        agent.fit(steps=70, workers=settings, verbose=0)
        stored = agent.replay.get_state()["columns"]
        observations, actions = (np.concatenate(stored[name])[-60:] for name in ("observation", "action"))
        assert np.array_equal(actions, agent.act(observations))

    def test_list_gives_each_worker_its_own_policy(self, tmp_path: Path) -> None:
        def make(seed: int | None = 3) -> noterl.DQN:
            own = [policies.EpsGreedyQPolicy(0.0), policies.LinearEpsGreedyPolicy(1.0, 0.5, steps=80)]
            return dqn("CartPole-v1", policy=own, seed=seed, learning_starts=0)

        whole, parts = make(), make()
        whole.fit(steps=90, num_envs=3, workers=2, verbose=0)
        parts.fit(steps=40, num_envs=3, workers=2, verbose=0)
        parts.save(tmp_path / "agent.noterl")
        for resumed in (make(seed=None), noterl.load(tmp_path / "agent.noterl")):
            resumed.restore(tmp_path / "agent.noterl")
            resumed.fit(steps=50, workers=2, verbose=0)
            assert_same_state(whole, resumed)
        assert whole.policy.eps == 0.0
        first, second = whole.get_state()["lanes"]["pool"]["explorers"]  # the states that the workers have sent
        annealed = policies.LinearEpsGreedyPolicy(1.0, 0.5, steps=80).get_state()
        assert first["eps"] == 0.0 and set(second) == set(annealed)

    def test_attributes_of_each_policy_reach_its_worker(self) -> None:
        own = [policies.EpsGreedyQPolicy(1.0) for _ in range(2)]

        def be_greedy(watcher: Watcher, episode: int) -> None:
            own[watcher.ended[-1][1]["worker"]].eps = 0.0

        class Acting(Watcher):
            def on_episode_end(self, episode: int, logs: Any) -> None:
                super().on_episode_end(episode, logs)
                be_greedy(self, episode)

        agent = dqn(policy=own, learning_starts=0, update_every=10**6)
        agent.fit(episodes=12, num_envs=2, workers=2, callbacks=[Acting()], verbose=0)
        assert own[0].eps == own[1].eps == 0.0
        agent.fit(steps=60, workers=2, verbose=0)
        stored = agent.replay.get_state()["columns"]
        observations, actions = (np.concatenate(stored[name])[-40:] for name in ("observation", "action"))
        assert np.array_equal(actions, agent.act(observations))

    @pytest.mark.parametrize("workers", [0, 1, 3])
    def test_list_of_another_length_raises(self, workers: int) -> None:
        agent = dqn(policy=[policies.EpsGreedyQPolicy(0.1), policies.EpsGreedyQPolicy(0.2)])
        with pytest.raises(ValueError, match="workers must be 2"):
            agent.fit(steps=5, num_envs=3, workers=workers)

    def test_bad_lists_raise(self) -> None:
        one = policies.EpsGreedyQPolicy(0.1)
        for policy in ([], [one, one], [one, None], [one, 3]):
            with pytest.raises(ValueError, match="policy"):
                dqn(policy=policy)
        with pytest.raises(ValueError, match="noise"):
            td3().compile(noise=[])

    def test_environment_that_cannot_be_sent_leaves_the_agent_usable(self) -> None:
        lock = threading.Lock()
        agent = dqn(lambda: (lock, DiscreteWalkEnv())[1])
        agent.fit(steps=6, num_envs=2, verbose=0)
        episodes = agent.get_state()["lanes"]
        with pytest.raises(ValueError, match="workers"):
            agent.fit(steps=6, workers=2, verbose=0)
        assert not children() and not differences(agent.get_state()["lanes"], episodes)
        agent.fit(steps=6, verbose=0)
        assert agent.steps == 12

    @pytest.mark.parametrize("value", [-1, 1.5, True, "two"])
    def test_bad_workers_raise(self, value: Any) -> None:
        with pytest.raises(ValueError, match="workers"):
            dqn().fit(steps=5, workers=value)

    def test_too_few_environments_raise(self) -> None:
        with pytest.raises(ValueError, match="num_envs"):
            dqn().fit(steps=5, num_envs=1, workers=2)

    def test_info_is_logged_and_stored(self) -> None:
        class Masking(noterl.DQN):
            info_spec: ClassVar = {"mask": ((3,), np.bool_, True)}

            def loss(self, batch: Any) -> Any:
                assert {"mask", "next_mask"} <= set(batch.extra)
                return super().loss(batch)

        histories = []
        for workers in (0, 2):
            agent = Masking(MaskedEnv, hidden=(4,), seed=3)
            agent.compile(replay=200, batch_size=8, learning_starts=10, update_every=4)
            history = agent.fit(episodes=6, num_envs=2, workers=workers, info={"late": "max"}, verbose=0)
            assert agent.updates > 0
            histories.append(history.history["late"])
        assert len(histories[0]) == len(histories[1]) == 6 and min(histories[1]) >= 1

    def test_agent_that_searches_raises(self) -> None:
        agent = noterl.AlphaZero(TicTacToe(), simulations=2, hidden=(4,))
        with pytest.raises(ValueError, match=r"workers.*searches"):
            agent.fit(steps=5, workers=2, verbose=0)


class TestFailures:
    def test_killed_worker_cuts_its_episodes_only(self) -> None:
        killed: list[int] = []

        def kill(watcher: Watcher, episode: int) -> None:
            if not killed and watcher.agent.steps > 20:
                killed.append(children()[0])
                os.kill(killed[0], signal.SIGKILL)

        for make in (dqn, ppo):
            killed.clear()
            agent, watcher = make(), Watcher(kill)
            with pytest.warns(RuntimeWarning, match="SIGKILL"):
                history = agent.fit(episodes=15, num_envs=4, workers=2, callbacks=[watcher], verbose=0)
            assert len(history) == 15 and len(watcher.begun) == len(watcher.ended)
            cut = [logs for _, logs in watcher.ended[:-4] if not logs["complete"]]
            assert 1 <= len(cut) <= 2 and len({logs["worker"] for logs in cut}) == 1
            if agent.replay is not None:
                check_replay(agent.replay)
            assert not children()

    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    @pytest.mark.parametrize("last_step", [21, 24], ids=["in a round", "between rounds"])
    def test_each_episode_that_a_failure_cuts_ends_itself(self, last_step: int, tmp_path: Path) -> None:
        class Kill(Callback):
            every, killed = Every(1, "steps"), False

            def on_due(self, logs: Any) -> None:
                if not self.killed and self.agent.steps == last_step:
                    self.killed = True
                    os.kill(children()[0], signal.SIGKILL)
                    time.sleep(0.1)
                    self.agent.save(tmp_path / "agent.noterl")

        agent, watcher = noterl.DQN(DiscreteWalkEnv, network=_custom_network(), seed=3), Watcher()
        agent.compile(replay=500, batch_size=8, learning_starts=10)
        with pytest.warns(RuntimeWarning, match="SIGKILL"):
            history = agent.fit(episodes=15, num_envs=4, workers=2, callbacks=[Kill(), watcher], verbose=0)
        assert len(history) == 15 and sorted(number for number, _ in watcher.ended) == watcher.begun
        cut = [logs for _, logs in watcher.ended[:-4] if not logs["complete"]]
        assert 1 <= len(cut) <= 2 and all(logs["length"] > 0 for logs in cut)
        check_replay(agent.replay)
        assert not children()

    def test_exception_of_an_environment_ends_the_fit(self) -> None:
        agent = dqn(partial(FaultyEnv, "raise", 30))
        with pytest.raises(WorkerError, match=r"worker \d .*ZeroDivisionError"):
            agent.fit(steps=500, num_envs=2, workers=2, verbose=0)
        assert not children() and agent.steps >= 40
        agent.fit(steps=8, workers=2, verbose=0)

    @pytest.mark.parametrize("error", [RuntimeError("callback"), SystemExit(3), KeyboardInterrupt()])
    def test_error_in_a_callback_leaves_no_process(self, error: BaseException) -> None:
        def fail(watcher: Watcher, episode: int) -> None:
            raise error

        agent = dqn()
        with pytest.raises(type(error)):
            agent.fit(steps=500, num_envs=2, workers=2, callbacks=[Watcher(fail)], verbose=0)
        assert not children()
        steps = agent.steps
        agent.fit(steps=10, workers=2, verbose=0)
        assert agent.steps == steps + 10

    def test_ctrl_c_ends_a_fit_within_a_step_of_an_hour(self) -> None:
        code = """
import os, signal, threading
from functools import partial
from tests.integration.test_workers import dqn
from tests.support.worker_envs import SlowEnv
from tests.support.pools import children
agent = dqn(partial(SlowEnv, 3600.0), learning_starts=10**6)
agent.build()
threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    agent.fit(steps=100, workers=2, verbose=0)
except KeyboardInterrupt:
    print("interrupted", children())
"""
        result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert result.stdout.strip() == "interrupted []", result

    def test_killed_learner_leaves_no_process(self) -> None:
        code = """
from tests.integration.test_workers import Watcher, dqn
from tests.support.pools import children
agent = dqn()
agent.fit(steps=10**9, num_envs=2, workers=2, verbose=0, callbacks=[Watcher(lambda *_: print(*children(), flush=True))])
"""
        learner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert learner.stdout is not None
        pids = [int(pid) for pid in learner.stdout.readline().split()]
        learner.kill()
        learner.wait()
        learner.stdout.close()
        assert len(pids) == 2
        wait_until_gone(pids)

    def test_slow_environments_are_stepped_at_once(self) -> None:
        agent = dqn(partial(SlowEnv, 0.05), learning_starts=10**6)
        history = agent.fit(steps=40, num_envs=4, workers=4, verbose=0)
        assert sum(history.time_split.values()) < 0.75 * 40 * 0.05 and not math.isnan(history.time_split["workers"])


def _custom_network() -> Any:
    import keras

    inputs = keras.Input((2,))
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.UnitNormalization()(hidden)))
