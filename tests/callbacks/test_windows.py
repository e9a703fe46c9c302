"""Window and ESSWindow: both rules of ESSWindow in exact numbers, logs, and resuming."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.callbacks import Adapt, ESSAdapt, ESSWindow, LambdaCallback, Rate, Scale, Window
from noterl.envs import FrameStack
from noterl.replay import Prioritized, RatioScore, Replay
from noterl.replay.samplers import Sampler
from noterl.training.dispatch import CallbackList, call_handlers
from tests.support.doubles import CountingEnv
from tests.support.states import assert_same_state, one_lane

pytestmark = pytest.mark.backends("torch")

CAPACITY = 200


def small_agent(seed: int = 1, **changes: Any) -> noterl.DQN:
    """Return an agent with episodes of 10 steps that does not learn by default."""
    agent = noterl.DQN(CountingEnv(10), hidden=(4,), seed=seed)
    settings = {"replay": Replay(CAPACITY, sampler=Prioritized(alpha=1.0)), "batch_size": 4, "learning_starts": 10**6}
    agent.compile(**settings | changes)
    return agent


class Scripted:
    """A memory that returns the given values of the ESS, and records how many transitions are dropped."""

    sequences = None
    storage = SimpleNamespace(frames=1)
    sources = SimpleNamespace(lanes=(1,))

    def __init__(self, size: int, values: list[float]) -> None:
        self.size, self.values, self.dropped = size, values, []

    def __len__(self) -> int:
        return self.size

    def effective_sample_size(self) -> float:
        return self.values.pop(0)

    def drop_oldest(self, count: int) -> None:
        self.dropped.append(count)
        self.size -= count


class ScriptedAgent:
    """The part of an agent that the callbacks use."""

    def __init__(self, memory: Any, batch_size: int = 1) -> None:
        self.replay, self.episodes, self.update_batch_size = memory, 0, batch_size


def trim(callback: ESSWindow, size: int, values: list[float], batch_size: int = 1) -> tuple[list[int], list[Any]]:
    """Finish episodes until the ESS values are used up; return the numbers of dropped transitions and the logs."""
    memory = Scripted(size, list(values))
    agent = callback.agent = ScriptedAgent(memory, batch_size)
    events, found = CallbackList([callback]).bind(), []
    while memory.values:
        agent.episodes += 1
        logs: dict[str, Any] = {}
        call_handlers(events.on_episode_end, agent.episodes, logs)
        found.append(logs)
    return memory.dropped, found


def test_target_keeps_the_smoothed_ess_times_scale() -> None:
    callback = ESSWindow(scale=2.0, smooth=0.25, mode="target", min_size=10)
    # After a trim the ESS is measured once more, as the baseline of the other mode.
    dropped, logs = trim(callback, 1000, [400.0, 380.0, 200.0, 190.0, 435.0, 400.0])
    # Per transition: 0.4 -> keep 0.8 * 1000; 0.25 * 200 / 800 + 0.75 * 0.4 = 0.3625 -> keep 0.725 * 800;
    # 0.25 * 435 / 580 + 0.75 * 0.3625 = 0.459375 -> 0.91875 * 580 = 532.875
    assert dropped == [200, 220, 48]
    assert [entry["window"] for entry in logs] == [800, 580, 532]
    assert [entry["ess"] for entry in logs] == [400.0, 200.0, 435.0]
    assert callback.ess == pytest.approx(0.459375 * 580)


def test_target_keeps_a_filling_memory_of_equal_scores() -> None:
    agent = small_agent()
    history = agent.fit(episodes=15, callbacks=[ESSWindow(mode="target")], verbose=0)
    assert history.history["window"] == list(range(10, 160, 10))


def test_default_mode_does_not_shrink_the_memory_by_itself() -> None:
    """The ESS is always half of the transitions, so it never falls below its baseline."""
    dropped, logs = trim(ESSWindow(min_size=10), 1000, [500.0] * 20)
    assert dropped == []
    assert {entry["window"] for entry in logs} == {1000}


def test_target_keeps_min_size() -> None:
    dropped, _ = trim(ESSWindow(scale=0.5, smooth=1.0, mode="target", min_size=64), 100, [3.0, 3.0])
    assert dropped == [36]
    dropped, _ = trim(ESSWindow(scale=0.5, smooth=1.0, mode="target"), 100, [3.0, 3.0], batch_size=32)
    assert dropped == [68]


def test_baseline_drops_the_lost_share_times_scale() -> None:
    callback = ESSWindow(scale=0.5, smooth=0.5, mode="baseline", min_size=10)
    dropped, logs = trim(callback, 1000, [800.0, 900.0, 450.0, 300.0, 250.0, 240.0, 200.0])
    # The smoothed ESS is 800, 850, 650. The last is 0.2353 below the baseline 850: 0.5 * 0.2353 * 1000 is 117.
    # The ESS after the trim, 300, is the new baseline. The next smoothed value, 450, is larger and replaces it.
    # The next one, 345, is 0.2333 below 450: 0.5 * 0.2333 * 883 is 103.
    assert dropped == [117, 103]
    assert [entry["window"] for entry in logs] == [1000, 1000, 883, 883, 780]
    assert [entry["ess"] for entry in logs] == [800.0, 900.0, 450.0, 250.0, 240.0]
    assert callback.baseline == 200.0


def test_baseline_grows_with_the_ess() -> None:
    callback = ESSWindow(smooth=1.0, mode="baseline", min_size=10)
    assert trim(callback, 1000, [100.0, 500.0, 999.0])[0] == []
    assert callback.baseline == 999.0


def test_baseline_keeps_min_size() -> None:
    dropped, _ = trim(ESSWindow(scale=50.0, smooth=1.0, mode="baseline", min_size=10), 100, [90.0, 45.0, 9.0])
    assert dropped == [90]


def two_workers(scores: tuple[float, ...], lanes: tuple[int, ...], batch_size: int = 1) -> noterl.DQN:
    """Return an agent whose memory has transitions of these lanes, one of each of two workers, with these scores."""
    agent = small_agent(batch_size=batch_size)
    agent.build()
    for lane in lanes:
        agent.replay.add(lane, np.zeros(2), 0, 0.0, np.zeros(2), True, False)
    agent.replay.sampler.feedback(np.arange(len(lanes)), {"td_error": np.array(scores)})
    agent.replay.set_sources((1, 1))
    return agent


def test_each_worker_has_its_own_ess_and_window() -> None:
    # Worker 0: eight equal scores, ESS 8. Worker 1: the scores 3, 1, 1, 1, 1 and ESS 49 / 13 = 3.77.
    agent = two_workers((1.0,) * 8 + (3.0, 1.0, 1.0, 1.0, 1.0), (0,) * 8 + (1,) * 5)
    callback = ESSWindow(scale=0.8, smooth=1.0, mode="target", by="worker")
    callback.agent = agent
    logs: dict[str, Any] = {}
    callback.on_due(logs)
    # 0.8 * 8 is 6, and 0.8 * 3.77 is 3.
    assert [own.tolist() for own in agent.replay.sources.split()] == [[2, 3, 4, 5, 6, 7], [10, 11, 12]]
    assert (len(agent.replay), logs["window"]) == (11, 9)
    assert callback.ess == [pytest.approx(8), pytest.approx(49 / 13)]
    assert callback.baseline == [pytest.approx(6), pytest.approx(3)]
    assert logs["ess"] == pytest.approx(8 + 49 / 13)


def test_only_the_worker_whose_ess_falls_loses_transitions() -> None:
    agent = two_workers((1.0,) * 20, (0, 1) * 10)
    callback = ESSWindow(smooth=1.0, by="worker")
    callback.agent = agent
    callback.on_due({})
    assert callback.baseline == [pytest.approx(10), pytest.approx(10)]
    agent.replay.sampler.feedback(np.array([19]), {"td_error": np.array([9.0])})
    callback.on_due({})
    # Worker 1: ESS 18^2 / (81 + 9) = 3.6, so 6 of 10 transitions are dropped.
    assert [len(own) for own in agent.replay.sources.split()] == [10, 4]
    assert agent.replay.sources.split()[1].tolist() == [13, 15, 17, 19]
    assert callback.baseline == [pytest.approx(10), pytest.approx(144 / 84)]


def test_window_of_a_worker_keeps_a_batch() -> None:
    agent = two_workers((1.0,) * 13, (0,) * 10 + (1,) * 3, batch_size=4)
    window = Window(1, every=1, by="worker")
    window.agent, logs = agent, {}
    window.on_due(logs)
    assert [own.tolist() for own in agent.replay.sources.split()] == [[6, 7, 8, 9], [10, 11, 12]]
    assert logs["window"] == len(agent.replay) == 7


def test_sampled_trim_of_a_worker_keeps_its_own_transitions() -> None:
    agent = two_workers((9.0,) * 5 + (1.0,) * 15 + (1.0,) * 20, (0,) * 20 + (1,) * 20)
    callback = ESSWindow(scale=0.5, smooth=1.0, mode="target", trim="sampled", by="worker")
    callback.agent = agent
    ess = 60**2 / (5 * 81 + 15)
    callback.on_due({})
    assert [len(own) for own in agent.replay.sources.split()] == [int(ess / 2), 10]


def test_rounding_error_of_the_ess_drops_nothing() -> None:
    assert trim(ESSWindow(smooth=1.0, mode="target"), 1000, [999.9999999])[0] == []


def test_logs_hold_ess_and_window() -> None:
    agent, callback = small_agent(), ESSWindow(smooth=1.0, mode="target", min_size=5)

    def feed(episode: int, logs: Any) -> None:
        if episode == 1:  # 20 transitions with equal scores; now 4 of them have a higher one
            scores = np.full(20, 1e-9)
            scores[[2, 11, 12, 17]] = 3.0
            agent.replay.sampler.feedback(np.arange(20), {"td_error": scores})

    history = agent.fit(episodes=3, callbacks=[LambdaCallback(on_episode_end=feed), callback], verbose=0)
    ess = history.history["ess"]
    np.testing.assert_allclose(ess[:2], [10, 4], rtol=1e-5)
    # The 5 newest remain, one of them with the score 3. The 10 new ones have the largest score.
    np.testing.assert_allclose(ess[2], 11, rtol=1e-5)
    assert history.history["window"] == [10, 5, 11]


def test_small_memory_is_not_measured() -> None:
    agent = small_agent(batch_size=40)
    history = agent.fit(episodes=6, callbacks=[ESSWindow()], verbose=0)
    assert np.isnan(history.history["ess"][:4]).all()
    np.testing.assert_allclose(history.history["ess"][4], 50)
    assert history.history["window"][:5] == [10, 20, 30, 40, 50]


@pytest.mark.parametrize("mode", ["target", "baseline"])
@pytest.mark.parametrize("trim", ["oldest", "sampled"])
def test_one_transition_is_kept(mode: str, trim: str) -> None:
    agent = small_agent(batch_size=1)
    agent.fit(steps=3, callbacks=[ESSWindow(0.01, 1.0, mode=mode, trim=trim, every=1, unit="steps")], verbose=0)
    assert len(agent.replay.sampler.probabilities()) == (1 if mode == "target" else 3)


def test_sampled_trim_prefers_high_scores_and_masks_the_rest() -> None:
    kept = []
    for seed in range(60):
        agent = small_agent(seed)
        agent.build()
        for _ in range(40):
            agent.replay.add(0, np.zeros(2), 0, 0.0, np.zeros(2), True, False)
        agent.replay.sampler.feedback(np.arange(40), {"td_error": np.where(np.arange(40) < 20, 9.0, 1.0)})
        callback = ESSWindow(scale=0.5, smooth=1.0, mode="target", trim="sampled")
        agent.replay.set_sources((1,))
        callback.agent = agent
        ess = agent.replay.effective_sample_size()
        assert ess == pytest.approx(200**2 / (20 * 81 + 20))
        logs: dict[str, Any] = {}
        callback.on_due(logs)
        rows = agent.replay.sampler.storage.unmasked_indices()
        assert len(rows) == logs["window"] == int(ess / 2)
        assert len(agent.replay) == 40
        kept.append(rows)
    # 12 of 40 are sampled without replacement, 20 of them with the ninefold probability: about 10.7 of the 12.
    high = np.mean([(rows < 20).sum() for rows in kept])
    generator = np.random.default_rng(0)
    chances = np.repeat([9.0, 1.0], 20) / 200
    expected = np.mean([(generator.choice(40, 12, replace=False, p=chances) < 20).sum() for _ in range(4000)])
    assert high == pytest.approx(expected, abs=0.4)
    assert len({rows.tobytes() for rows in kept}) > 50


@pytest.mark.parametrize(
    "make",
    [
        lambda: ESSWindow(2.5, mode="target", min_size=20),
        lambda: ESSWindow(2.0, mode="baseline", trim="sampled", every=7, unit="updates"),
    ],
)
def test_resumed_run_continues_exactly(make: Any, tmp_path: Any) -> None:
    def agent() -> noterl.DQN:
        return one_lane(replay=Replay(128, sampler=Prioritized()))

    whole, first, second = agent(), agent(), agent()
    history = whole.fit(episodes=12, callbacks=[make()], verbose=0)
    assert len(set(history.history["window"])) > 4
    first.fit(episodes=6, callbacks=[make()], verbose=0)
    first.save(tmp_path / "half.noterl")
    second.restore(tmp_path / "half.noterl")
    again = second.fit(episodes=6, callbacks=[make()], verbose=0)
    assert_same_state(second, whole)
    for name in ("window", "ess"):
        assert again.history.get(name) == history.history.get(name, [])[6:] or name not in history.history


def test_window_trims_a_full_memory_to_its_size() -> None:
    agent = small_agent()
    history = agent.fit(episodes=31, callbacks=[Window(50)], verbose=0)
    expected = [10 * (episode + 1) for episode in range(19)] + [50, *range(60, 200, 10)][:12]
    assert history.history["window"] == expected[:31]
    assert agent.replay._storage.begin == agent.steps - len(agent.replay)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (25, [25, 25, 25]),
        (0.4, [12, 16, 18]),
        (lambda agent: 0.5, [15, 22, 26]),
        (lambda agent: agent.episodes, [4, 6, 9]),
    ],
)
def test_window_trims_every_30_steps(size: Any, expected: list[int]) -> None:
    agent, sizes = small_agent(), []
    window = Window(size, every=30)
    probe = noterl.Callback()
    probe.on_step_end = lambda: agent.steps % 30 == 0 and sizes.append(len(agent.replay))
    agent.fit(steps=95, callbacks=[window, probe], verbose=0)
    assert sizes == expected


def test_window_keeps_at_least_a_batch() -> None:
    agent = small_agent(batch_size=30)
    agent.fit(episodes=5, callbacks=[Window(1, every=2, unit="episodes")], verbose=0)
    assert len(agent.replay) == 40


@pytest.mark.parametrize(
    "make", [lambda: Window(1, every=8, unit="steps"), lambda: ESSWindow(0.01, mode="target", every=8, unit="steps")]
)
def test_windows_keep_a_batch_with_complete_stacks_of_frames(make: Any) -> None:
    agent = noterl.DQN(lambda: FrameStack(CountingEnv(100), 4), hidden=(4,), seed=1)
    replay = Replay(CAPACITY, frame_stack=4, sampler=Prioritized())
    agent.compile(replay=replay, batch_size=30, learning_starts=50, update_every=8, updates=1)
    agent.fit(steps=400, num_envs=8, callbacks=[make()], verbose=0)
    assert agent.updates > 40
    assert len(agent.replay) < CAPACITY // 2 and agent.replay.num_sampleable() >= 30


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), r"^size must .*got 0"),
        (lambda: Window(1.5), "size"),
        (lambda: Window("all"), "size"),
        (lambda: Window(True), "size"),
        (lambda: Window(5, every=0), "every"),
        (lambda: Window(5, every=1, unit="batches"), "unit"),
        (lambda: ESSWindow(0.0), "scale"),
        (lambda: ESSWindow(smooth=0.0), "smooth"),
        (lambda: ESSWindow(smooth=1.1), "smooth"),
        (lambda: ESSWindow(mode="max"), r"mode must .*got 'max'"),
        (lambda: ESSWindow(trim="newest"), r"trim must .*got 'newest'"),
        (lambda: ESSWindow(min_size=0), "min_size"),
        (lambda: ESSWindow(every=-1), "every"),
        (lambda: Window(5, by="lane"), "by must be None or 'worker', got 'lane'"),
        (lambda: ESSWindow(by=1), "by must be None or 'worker', got 1"),
    ],
)
def test_bad_arguments_raise(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_return_value_of_size_raises() -> None:
    with pytest.raises(ValueError, match=r"size .* got -3"):
        small_agent().fit(steps=40, callbacks=[Window(lambda agent: -3, every=10)], verbose=0)


every_window = pytest.mark.parametrize(
    "callback",
    [
        lambda: ESSWindow(),
        lambda: Window(20),
        lambda: ESSAdapt(target_ess=20, lr=Rate(1.0, 1e-4, 1e-2)),
        lambda: Adapt(target_ess=20, lr=Rate(1.0, 1e-4, 1e-2)),
    ],
)


@every_window
def test_fit_that_learns_from_no_replay_memory_raises(callback: Any) -> None:
    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=16)
    with pytest.raises(ValueError, match=r"callbacks: .* needs a replay memory; PPO has none"):
        agent.fit(steps=100, callbacks=[callback()], verbose=0)
    agent = small_agent()
    data = noterl.Dataset.record(noterl.DQN(lambda: CountingEnv(10), hidden=(4,), seed=1), steps=20)
    with pytest.raises(ValueError, match=r"needs a replay memory; .* samples only the data set"):
        agent.fit(dataset=data, updates=3, callbacks=[callback()], verbose=0)
    assert agent.steps == agent.updates == 0


@every_window
def test_batches_of_whole_rollouts_are_supported(callback: Any) -> None:
    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=16, epochs=1, seed=1)
    agent.compile(batch_size="rollout", replay=noterl.Replay(64, sampler=Prioritized(score=RatioScore())))
    agent.fit(steps=100, callbacks=[callback()], verbose=0)
    assert agent.updates > 0


class TestMemoryWithoutPriorities:
    """The effective sample size is the number of transitions."""

    @pytest.mark.parametrize(
        ("name", "callback"),
        [
            ("ESSWindow", lambda: ESSWindow()),
            ("ESSAdapt", lambda: ESSAdapt(target_ess=2, lr=Rate(1e-3, 1e-5, 1e-2), batch=Scale())),
            ("ESSAdapt", lambda: Adapt(target_ess=1e6, lr=Rate(1e-3, 1e-5, 1e-2), batch=Scale())),
            ("ESSAdapt", lambda: ESSAdapt(lr=Rate(1e-3, 1e-5, 1e-2))),
        ],
    )
    def test_callback_warns_once_and_holds_still(self, name: str, callback: Any) -> None:
        agent = small_agent(replay=Replay(CAPACITY), learning_starts=4, optimizer=1e-3)
        with pytest.warns(UserWarning, match=rf"^callbacks: {name} .*Prioritized") as caught:
            history = agent.fit(episodes=12, callbacks=[callback()], verbose=0).history
        assert len(caught) == 1
        assert agent.learning_rate == pytest.approx(1e-3) and agent.schedule.batch_size == 4
        assert history["ess"][-1] == pytest.approx(120)
        assert history.get("window", [120])[-1] == 120

    def test_sampler_with_chances_of_its_own_adapts(self) -> None:
        class Newer(Sampler):
            def probabilities(self, *, alpha: bool = True) -> Any:
                chances = np.arange(1.0, self.storage.num_unmasked + 1)
                return chances / chances.sum()

            def sample_indices(self, updates: int, batch_size: int, generator: Any) -> Any:
                return generator.choice(self.storage.unmasked_indices(), (updates, batch_size), p=self.probabilities())

        agent = small_agent(replay=Replay(CAPACITY, sampler=Newer()), optimizer=1e-3)
        agent.fit(episodes=3, callbacks=[ESSAdapt(target_ess=1, lr=Rate(1e-4, 1e-5, 1e-2))], verbose=0)
        assert agent.learning_rate > 1e-3
