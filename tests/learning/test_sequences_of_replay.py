"""Updates of a replay agent with a state receive sequences of its memory, with the state before their first rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.callbacks import ESSWindow, LambdaCallback, Window
from noterl.policies import GreedyQPolicy
from noterl.replay import Prioritized, Replay
from noterl.replay.state_sequences import SequenceSpec
from noterl.types import STARTS
from tests.support.stateful import PATHS, StepNumberEnv, counted, logs_of_updates
from tests.support.states import assert_same_state

ops = keras.ops
LENGTH, BURN_IN, EVERY, SEQUENCES = 6, 2, 4, 5


class ReplayCounter(noterl.Agent):
    """Its state counts the steps of an episode; its loss is 0 only if the counts are right in every row."""

    memory, head = "replay", noterl.heads.Q()
    state_spec: ClassVar[dict[str, Any]] = {"count": ()}
    sequence_length, burn_in, state_every = LENGTH, BURN_IN, EVERY

    def __init__(self, env: Any, *, seed: int = 0) -> None:
        super().__init__(env, seed=seed)
        self.q = noterl.networks.mlp(1, [], 3)

    def forward(self, observation: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return self.q(observation), {"count": state["count"] + 1}

    def loss(self, batch: Any) -> Any:
        counts, _ = counted(batch.extra["state"]["count"], batch.extra["starts"])
        wrong = ops.cast(counts != batch.observation[..., 0], "float32")
        following = batch.next_observation[:-1, :, 0] == batch.observation[1:, :, 0]
        lost = batch.extra["continues"][:-1] * ops.cast(~following, "float32")
        q = noterl.losses.map_rows(self.q, batch.observation)
        return 0.0 * ops.mean(q) + ops.sum(wrong) + ops.sum(lost), {
            "started": ops.sum(batch.extra["starts"]),
            "burned_in": ops.sum(batch.weight[:BURN_IN]),
            "weight": ops.max(batch.weight[BURN_IN:]),
            "rows": ops.convert_to_tensor(float(batch.reward.shape[0])),
            "sequences": ops.convert_to_tensor(float(batch.index.shape[0])),
            "td_error": batch.observation[..., 0] - 1.0,
        }


def compiled(env: Any = StepNumberEnv, capacity: int = 60, sampler: Any = None, **arguments: Any) -> ReplayCounter:
    agent = ReplayCounter(env, **arguments)
    replay = Replay(capacity, sampler=sampler)
    agent.compile(replay=replay, policy=GreedyQPolicy(), batch_size=SEQUENCES, learning_starts=4, update_every=8)
    return agent


@pytest.mark.backends("torch")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings(
    "ignore:workers. NumPy cannot run:RuntimeWarning", "ignore:the budget ended within a step:RuntimeWarning"
)
def test_states_are_those_of_the_episodes(path: str) -> None:
    env, options = PATHS[path]
    logs = logs_of_updates(compiled(env), 160, **options)
    assert len(logs["loss"]) > 8
    assert not any(logs["loss"])
    assert any(logs["started"])
    assert not any(logs["burned_in"])
    assert set(logs["weight"]) == {1.0}
    assert set(logs["rows"]) == {LENGTH + BURN_IN}
    assert set(logs["sequences"]) == {SEQUENCES}


def test_states_are_right_on_each_backend() -> None:
    logs = logs_of_updates(compiled(sampler=Prioritized()), 100, num_envs=2)
    assert len(logs["loss"]) > 3
    assert not any(logs["loss"])


@pytest.mark.backends("torch")
def test_priority_is_that_of_the_largest_and_the_mean_error() -> None:
    agent = compiled(sampler=Prioritized(alpha=1.0), capacity=1_000)
    agent.fit(steps=400, verbose=0)
    sequences, scores = agent.replay.sequences, agent.replay.sampler.get_state()["scores"]
    storage = agent.replay.storage
    numbers = storage.observation[sequences.get_state()["rows"][:, BURN_IN:], 0]
    errors = np.abs(numbers - 1.0)
    expected = 0.9 * errors.max(1) + 0.1 * errors.mean(1)
    learned = np.isclose(scores, expected, rtol=1e-5)
    assert learned.mean() > 0.8  # the newest have the largest score so far


@pytest.mark.backends("torch")
def test_sequences_start_at_multiples_and_are_evicted_with_their_steps() -> None:
    agent = compiled(capacity=60)
    agent.fit(steps=200, num_envs=2, verbose=0)
    agent.replay.num_sampleable()
    state, storage = agent.replay.sequences.get_state(), agent.replay.storage
    assert len(state["rows"]) > 5
    assert (state["rows"][:, 0] >= storage.begin).all()
    assert (state["rows"] < storage.count).all()
    assert (np.diff(state["rows"], axis=1) == 2).all()  # two lanes
    assert set(state["rows"][:, 0] // 2 % EVERY) == {0}


@pytest.mark.backends("torch")
def test_lane_that_was_gone_evicts_no_sequences_of_others() -> None:
    agent = compiled(capacity=200)
    agent.fit(steps=60, num_envs=2, verbose=0)
    agent.fit(steps=400, num_envs=1, verbose=0)
    before = agent.replay.num_sampleable()
    for _ in range(4):
        agent.fit(steps=4, num_envs=2, verbose=0)
    assert before > 40
    assert agent.replay.num_sampleable() >= before - 8  # those whose steps were overwritten


@pytest.mark.backends("torch")
def test_file_after_a_trim_can_be_restored(tmp_path: Path) -> None:
    agent, restored = compiled(), compiled()
    agent.fit(steps=100, num_envs=2, verbose=0)
    agent.replay.drop_oldest(len(agent.replay) - 3)
    agent.save(tmp_path / "agent.noterl")
    restored.restore(tmp_path / "agent.noterl")
    assert len(restored.replay) == 3
    assert restored.replay.num_sampleable() == 0


@pytest.mark.backends("torch")
def test_beta_counts_steps() -> None:
    agent = compiled(sampler=Prioritized(beta=0.4, beta_steps=400), capacity=1_000)
    agent.fit(steps=200, verbose=0)
    assert agent.replay.sampler.current_beta == pytest.approx(0.7, abs=0.02)
    agent.fit(steps=220, verbose=0)
    assert agent.replay.sampler.current_beta == 1.0


@pytest.mark.backends("torch")
def test_effective_sample_size_is_in_transitions() -> None:
    agent = compiled(capacity=200)
    agent.fit(steps=150, verbose=0)
    assert agent.replay.effective_sample_size() == pytest.approx(150)
    with pytest.raises(ValueError, match="by_worker must be False for a memory of sequences"):
        agent.replay.effective_sample_size(by_worker=True)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("make", [lambda **how: Window(1, **how), lambda **how: ESSWindow(0.001, mode="target", **how)])
@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_windows_keep_a_batch_of_sequences(make: Any, lanes: int) -> None:
    agent = compiled(sampler=Prioritized(), capacity=400)
    agent.fit(steps=400, num_envs=lanes, callbacks=[make(every=8, unit="steps")], verbose=0)
    least = EVERY * (SEQUENCES + lanes) + (LENGTH + BURN_IN) * lanes
    assert len(agent.replay) < least + 10
    updates, sequences = agent.updates, []
    count = LambdaCallback()
    count.on_step_end = lambda: sequences.append(agent.replay.num_sampleable())
    agent.fit(steps=40, num_envs=lanes, callbacks=[make(every=1, unit="steps"), count], verbose=0)
    assert min(sequences) >= SEQUENCES
    assert agent.updates - updates == 5


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "steps",
    [
        [*range(60)],
        [*range(30, 48)],  # an episode that a resumed run continues
        [*range(8), *range(30, 42)],  # such an episode, after another one in the same memory
    ],
)
def test_sequences_have_complete_stacks_of_frames(steps: list[int]) -> None:
    """The memory holds 18 or 20 steps, whose frames are the numbers of the steps of an episode."""
    replay = Replay(20, frame_stack=4)
    replay.build(spaces.Box(0, 255, (4, 1), np.uint8), spaces.Discrete(2), allocate=False)
    replay.store_sequences(SequenceSpec(length=4, burn_in=0, every=1, state={}))
    replay.allocate()

    def stack(step: int) -> np.ndarray:
        return np.maximum(0, np.arange(step - 3, step + 1))[:, None].astype(np.uint8)

    for step in steps:
        if step == 30:
            replay.interrupt(0)
        replay.sequences.begin_round({STARTS: np.array([step == 0], np.float32)})
        replay.add(0, stack(step), 0, 0.0, stack(step + 1), False, False)
        replay.sequences.add(0, replay.storage.count - 1)
    assert replay.num_sampleable() > 10
    sample = replay.sample(20, 10, generator=np.random.default_rng(0))
    stacks = replay.sequences.gather(sample, 0.9).observation[..., 0]
    np.testing.assert_array_equal(stacks, np.maximum(0, stacks[..., -1:].astype(int) - [3, 2, 1, 0]))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("sampler", [None, Prioritized()])
def test_fits_and_files_continue_bit_for_bit(tmp_path: Path, sampler: Any) -> None:
    build = lambda: compiled(seed=3, sampler=None if sampler is None else Prioritized())  # noqa: E731
    whole, agent = build(), build()
    whole.fit(steps=93, num_envs=2, verbose=0)
    for _ in range(3):
        logs = logs_of_updates(agent, 31, num_envs=2)
        assert not any(logs.get("loss", []))
        agent.save(tmp_path / "agent.noterl")
        agent = build()
        agent.restore(tmp_path / "agent.noterl")
    assert_same_state(agent, whole)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("name", "value"), [("sequence_length", 0), ("burn_in", -1), ("state_every", 0)], ids=lambda value: str(value)
)
def test_declarations_are_checked(name: str, value: int) -> None:
    agent = ReplayCounter(StepNumberEnv)
    setattr(agent, name, value)
    with pytest.raises(ValueError, match=f"^{name} must be"):
        agent.build()


@pytest.mark.backends("torch")
def test_memory_that_is_too_small_for_a_sequence_is_refused() -> None:
    agent = ReplayCounter(StepNumberEnv)
    agent.compile(replay=Replay(7), batch_size=1)
    with pytest.raises(ValueError, match="replay must hold a sequence of 8 steps"):
        agent.build()


@pytest.mark.backends("torch")
def test_batch_of_more_sequences_than_the_memory_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must"):
        compiled(capacity=16)


@pytest.mark.backends("torch")
def test_state_of_other_sequences_is_refused() -> None:
    agent = compiled()
    agent.fit(steps=60, verbose=0)
    state = agent.get_state()
    state["replay"]["sequences"]["rows"] = state["replay"]["sequences"]["rows"] + 1_000
    with pytest.raises(ValueError, match="sequences"):
        agent.set_state(state)
    del state["replay"]["sequences"]
    with pytest.raises(ValueError, match="sequences"):
        agent.set_state(state)
