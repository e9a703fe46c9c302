"""Replay memory: contents after any history, batches, sampling, arguments, memory."""

import numpy as np
import psutil
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl.registry import lookup
from noterl.replay import Replay, bytes_needed
from noterl.replay import replay as replay_module
from noterl.types import Batch
from noterl.utils import memory as machine
from tests.support.replay_invariants import check_replay
from tests.support.replay_model import SPACES, Pair, assert_same, built, filled, make_observation, sample_batch

pytestmark = pytest.mark.backend_free


lanes = st.integers(0, 3)
adds = st.tuples(
    st.just("add"),
    lanes,
    st.sampled_from([None, None, None, None, "terminated", "truncated", "both"]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([None, None, None, 3, 7]),
)
others = st.one_of(
    st.tuples(st.just("interrupt"), lanes), st.tuples(st.just("clear")), st.tuples(st.just("restore"), st.booleans())
)
operations = st.lists(st.one_of(adds, adds, adds, adds, adds, others), max_size=60)


@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=80, deadline=None)
@given(capacity=st.integers(1, 12), operations=operations)
def test_any_sequence_of_operations_leaves_what_a_plain_list_holds(name, capacity, operations):
    pair = Pair(capacity, SPACES[name])
    for operation, *arguments in operations:
        getattr(pair, operation)(*arguments)
        pair.compare()


@pytest.mark.parametrize("name", ["vector", "dict"])
def test_many_short_episodes_on_many_lanes_need_at_most_one_slot_each(name):
    pair = Pair(50, SPACES[name])
    for step in range(200):
        pair.add(step % 70, "terminated" if step % 2 else None, False, None)
        pair.compare()
    pair.restore(used=True)
    pair.compare()
    assert len(pair.replay._storage.final_observations) == 64


def test_observation_that_the_environment_changes_in_place_is_stored_as_it_was():
    replay = built(10)
    observation = np.zeros(3, np.float32)
    replay.add(0, observation, 0, 0.0, observation, False, False)
    observation += 1  # an environment that reuses its buffer, reset without `interrupt`
    replay.add(0, observation, 0, 0.0, observation, False, False)
    storage = replay._storage
    assert storage.next_observations(np.arange(2))[:, 0].tolist() == [0.0, 1.0]
    assert storage.observations(np.arange(2))[:, 0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("leaf", ["first", "second"])
def test_reset_without_interrupt_is_detected_in_any_leaf(leaf):
    replay = built(10, spaces.Dict({"first": spaces.Discrete(9), "second": spaces.Box(0, 9, (2,))}))
    observation = {"first": 1, "second": np.ones(2)}
    reset = observation | {leaf: 2 * observation[leaf]}
    replay.add(0, observation, 0, 0.0, observation, False, False)
    replay.add(0, reset, 0, 0.0, reset, False, False)
    following = replay._storage.next_observations(np.array([0]))
    assert (following["first"].tolist(), following["second"].tolist()) == ([1], [[1.0, 1.0]])


def test_interrupted_lane_is_not_continued_even_by_an_equal_observation():
    replay = built(10)
    for _ in range(2):
        replay.add(0, np.ones(3), 0, 0.0, np.ones(3), False, False)
        replay.interrupt(0)
    replay.add(0, np.ones(3), 0, 0.0, np.ones(3), False, False)
    replay.add(0, np.ones(3), 0, 0.0, np.ones(3), False, False)
    assert (replay._storage.successor[:4] >= 0).tolist() == [False, False, True, False]


def test_batch_holds_the_transitions_of_its_index():
    replay = filled(100, 250, lanes=2)
    batch = sample_batch(replay, 3, 32)
    assert isinstance(batch, Batch)
    number = batch.reward
    assert number.shape == (3, 32)
    assert number.min() >= 150
    assert (batch.observation == number[..., None]).all()
    assert (batch.next_observation == number[..., None] + 2).all()
    assert (batch.action == number % 5).all()
    assert (batch.index == number % 100).all()
    np.testing.assert_array_equal(batch.discount, np.where(number % 9 == 8, 0, np.float32(0.9)))
    assert (batch.weight == 1).all()
    dtypes = {name: str(array.dtype) for name, array in batch._asdict().items() if name != "extra"}
    expected = dict.fromkeys(dtypes, "float32") | {"action": "int32", "index": "int64"}
    assert dtypes == expected
    assert batch.extra == {}


def test_truncation_does_not_cut_the_bootstrap():
    replay = built(4)
    replay.add(0, np.zeros(3), 0, 0.0, np.ones(3), False, True)
    replay.add(0, np.zeros(3), 0, 1.0, np.ones(3), True, True)
    batch = sample_batch(replay, 1, 2, np.random.default_rng(2), gamma=0.5)
    assert set(zip(batch.reward[0].tolist(), batch.discount[0].tolist(), strict=True)) == {(0.0, 0.5), (1.0, 0.0)}


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(-1, 1, (2,), np.float64), "float32"),
        (spaces.Box(-1, 1, (2,), np.float16), "float16"),
        (spaces.Box(0, 255, (2,), np.uint8), "uint8"),
        (spaces.Box(-5, 5, (2,), np.int64), "int32"),
        (spaces.Box(-(2**40), 2**40, (2,), np.int64), "int64"),
        (spaces.Discrete(4, start=-2), "int32"),
        (spaces.Discrete(2**40), "int64"),
        (spaces.MultiDiscrete([3, 4]), "int32"),
        (spaces.MultiBinary(3), "int8"),
    ],
)
def test_batch_dtypes_of_all_spaces(space, dtype):
    replay = built(5, space, space)
    space.seed(3)
    samples = [space.sample() for _ in range(6)]
    for step in range(5):
        replay.add(0, samples[step], samples[step], 0.0, samples[step + 1], False, False)
    batch = sample_batch(replay, 2, 5)
    for field, shift in (("observation", 0), ("action", 0), ("next_observation", 1)):
        array = getattr(batch, field)
        assert array.dtype == dtype
        assert array.shape == (2, 5, *space.shape)
        expected = np.array(samples, space.dtype)[batch.index + shift].astype(dtype)
        np.testing.assert_array_equal(array, expected)


def test_dict_observations_and_extra_fields_come_as_dicts_of_arrays():
    replay = built(5, SPACES["dict"], extra_spec={"logits": ((2,), np.float64)})
    for step in range(5):
        now, following = (make_observation(SPACES["dict"], number) for number in (step, step + 1))
        replay.add(0, now, 0, step, following, False, False, {"logits": [step, -step]})
    batch = sample_batch(replay, 2, 3)
    assert batch.observation["camera"].shape == (2, 3, 2, 2)
    assert (batch.observation["camera"][..., 0, 0] == batch.reward).all()
    assert (batch.next_observation["body"]["arm"][..., 0] == batch.reward + 1).all()
    assert (batch.extra["logits"] == np.stack([batch.reward, -batch.reward], -1)).all()
    assert batch.extra["logits"].dtype == np.float32


def test_batches_do_not_share_memory():
    replay = filled(20, 20)
    generator = np.random.default_rng(0)
    first = sample_batch(replay, 2, 8, generator)
    copies = [array.copy() for array in first[:-1]]
    second = sample_batch(replay, 2, 8, generator)
    for _ in range(20):
        replay.add(0, np.full(3, -1), 0, -1.0, np.full(3, -1), False, False)
    assert not (second.index == first.index).all()
    for array, copy in zip(first[:-1], copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("count", [10, 37, 40])
def test_every_stored_transition_is_sampled_equally_often_and_independently(count):
    replay = filled(20, count)
    stored = min(count, 20)
    draws = 400 * stored
    batch = sample_batch(replay, draws // 10, 10, np.random.default_rng(5))
    numbers = batch.reward.astype(int).ravel()
    assert set(numbers.tolist()) == set(range(count - stored, count))
    frequencies = np.bincount(numbers - numbers.min(), minlength=stored)
    assert ((frequencies - 400) ** 2 / 400).sum() < 50  # chi square, 19 degrees of freedom: p = 1e-4
    # Neighbors in a batch are equal by chance only: sampling is with replacement.
    agree = (batch.index[:, 1:] == batch.index[:, :-1]).mean()
    assert abs(agree - 1 / stored) < 5 * np.sqrt(1 / stored / draws)


def test_newest_transition_of_a_running_lane_has_its_next_observation():
    replay = built(10)
    replay.add(0, np.zeros(3), 0, 0.0, np.ones(3), False, False)
    batch = sample_batch(replay, 1, 1)
    assert batch.next_observation.tolist() == [[[1.0, 1.0, 1.0]]]


def test_seeds_reproduce_samples():
    replay = filled(50, 80)
    one, same, other = (sample_batch(replay, 4, 16, np.random.default_rng(seed)).index for seed in (3, 3, 4))
    assert (one == same).all()
    assert not (one == other).all()


def test_value_that_does_not_fit_is_not_stored_and_loses_no_slot():
    replay = filled(20, 33)
    good = np.zeros(3)
    for _ in range(50):
        with pytest.raises(ValueError, match="broadcast"):
            replay.add(0, good, 0, 0.0, np.zeros(4), False, False)
        with pytest.raises(ValueError, match="broadcast"):
            replay.add(0, np.zeros(4), 0, 0.0, good, False, False)
        with pytest.raises(TypeError):
            replay.add(0, good, 0.5, 0.0, good, False, False)
        with pytest.raises(ValueError, match=r"exactly the fields \[\], got \['ratio'\]"):
            replay.add(0, good, 0, 0.0, good, False, False, {"ratio": 1.0})
    check_replay(replay)
    assert len(replay) == 19
    assert replay._storage.num_slots <= 5
    replay.add(0, good, 0, 0.0, good, False, False)
    assert len(replay) == 20


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "10", None, True])
def test_capacity_must_be_a_positive_int(capacity):
    with pytest.raises(ValueError, match="capacity must be a positive int"):
        Replay(capacity)


@pytest.mark.parametrize(
    ("updates", "batch_size", "message"),
    [
        (0, 1, "updates must be a positive int"),
        (1, 0, "batch_size must be a positive int"),
        (1, 2.0, "batch_size must be a positive int"),
        (1, 8, "batch_size must be at most .* 7, got 8"),
    ],
)
def test_arguments_of_sample(updates, batch_size, message):
    with pytest.raises(ValueError, match=message):
        sample_batch(filled(20, 7), updates, batch_size)


def test_a_batch_as_large_as_the_memory_and_more_updates_than_rows():
    batch = sample_batch(filled(20, 7), 50, 7)
    assert batch.reward.shape == (50, 7)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "message"),
    [
        (spaces.Tuple([spaces.Discrete(2)]), spaces.Discrete(2), "observation_space must be Box"),
        (spaces.Dict({"word": spaces.Text(4)}), spaces.Discrete(2), r"observation_space\['word'\] must be Box"),
        (spaces.Dict({}), spaces.Discrete(2), "observation_space must be Box"),
        (spaces.Discrete(2), spaces.Dict({"move": spaces.Discrete(2)}), "action_space must be Box"),
    ],
)
def test_spaces_that_cannot_be_stored_raise_with_their_name(observation_space, action_space, message):
    with pytest.raises(ValueError, match=message):
        built(5, observation_space, action_space)


@pytest.mark.parametrize("entry", [None, (3, np.float32), ((3,), "text"), ((3,),), ((-1,), np.float32)])
def test_extra_spec_must_be_shapes_and_dtypes(entry):
    with pytest.raises(ValueError, match=r"extra_spec\['advantage'\] must"):
        built(5, extra_spec={"advantage": entry})


def test_extra_must_have_the_fields_of_extra_spec():
    replay = built(5, extra_spec={"value": ((), np.float32)})
    for extra in (None, {}, {"values": 1.0}):
        with pytest.raises(ValueError, match="extra must"):
            replay.add(0, np.zeros(3), 0, 0.0, np.zeros(3), False, False, extra)
    assert len(replay) == 0


def test_second_build_keeps_the_contents_and_raises_for_other_spaces():
    replay = filled(20, 7)
    replay.build(spaces.Box(0, 1, (3,)), spaces.Discrete(5))
    assert len(replay) == 7
    for arguments in ((spaces.Box(0, 1, (4,)), spaces.Discrete(5)), (SPACES["vector"], spaces.Box(0, 1, (2,)))):
        with pytest.raises(ValueError, match="do not fit this Replay"):
            replay.build(*arguments)
    with pytest.raises(ValueError, match="do not fit this Replay"):
        replay.build(SPACES["vector"], spaces.Discrete(5), extra_spec={"value": ((), np.float32)})


def test_use_before_build_raises():
    replay = Replay(5)
    assert (len(replay), replay.nbytes) == (0, 0)
    check_replay(replay)
    replay.clear()
    for use in (
        lambda: replay.add(0, 0, 0, 0.0, 0, False, False),
        lambda: replay.interrupt(0),
        lambda: sample_batch(replay, 1, 1),
    ):
        with pytest.raises(RuntimeError, match="call build"):
            use()


def test_add_bound_before_build_works_after_it():
    replay = Replay(5)
    add = replay.add
    replay.build(SPACES["vector"], spaces.Discrete(5))
    assert [add(0, np.zeros(3), 0, 0.0, np.zeros(3), False, False) for _ in range(6)] == [0, 1, 2, 3, 4, 0]


def test_feedback_without_feedback_fields_changes_nothing():
    replay, same = filled(20, 33), filled(20, 33)
    assert replay.feedback(np.zeros((1, 4), np.int64), {"td_error": np.ones((1, 4))}) is None
    assert_same(replay.get_state(), same.get_state())


def test_clear_keeps_the_allocation_and_continues_insertion_numbers():
    replay = filled(20, 33)
    allocated = replay.nbytes
    replay.clear()
    assert (len(replay), replay.nbytes) == (0, allocated)
    index = replay.add(0, np.zeros(3), 0, 0.0, np.ones(3), False, False)
    assert replay._storage.insertion_numbers(np.array([index])).tolist() == [33]
    assert replay._storage.next_observations(np.array([index])).tolist() == [[1.0, 1.0, 1.0]]


def test_configuration_and_registry():
    assert lookup("Replay") is Replay
    assert Replay.from_config(Replay(77).get_config()).capacity == 77


def test_a_million_atari_frames_need_about_seven_gigabytes():
    frames, action = spaces.Box(0, 255, (84, 84), np.uint8), spaces.Discrete(18)
    assert 7.0e9 < bytes_needed(1_000_000, frames, action) <= 7.5e9
    assert built(500, frames, action).nbytes == bytes_needed(500, frames, action)


def test_bytes_needed_counts_every_field():
    box, extra = spaces.Box(-1, 1, (6,), np.float64), {"value": ((3,), np.float32)}
    # observation, action, extra; reward, terminated, truncated, lane, successor; sixteen final observations
    assert bytes_needed(100, box, spaces.MultiBinary(5), extra_spec=extra) == 100 * (48 + 5 + 12 + 18) + 16 * 48
    assert built(100, box, spaces.MultiBinary(5), extra_spec=extra).nbytes == 100 * 83 + 768
    with pytest.raises(ValueError, match="capacity must be"):
        bytes_needed(0, box, box)


def test_capacity_beyond_the_available_memory_raises_with_the_numbers_of_bytes(monkeypatch):
    with pytest.raises(ValueError, match=r"capacity=10{12} needs 3\d{13} bytes"):
        built(10**12)
    needed = bytes_needed(1000, SPACES["vector"], spaces.Discrete(5))
    monkeypatch.setattr(replay_module, "available_bytes", lambda: needed - 1)
    with pytest.raises(ValueError, match=rf"{needed} .*{needed - 1} .*at most 999 "):
        built(1000)
    monkeypatch.setattr(replay_module, "available_bytes", lambda: needed)
    built(1000)


def test_error_of_a_large_memory_names_the_line_to_write(monkeypatch):
    monkeypatch.setattr(replay_module, "available_bytes", lambda: 10**9)
    line = r"compile\(replay=noterl\.Replay\(20_000\)\)"
    with pytest.raises(ValueError, match=line + "; .*frame_stack=4"):
        built(100_000, spaces.Box(0, 255, (84, 84, 4), np.uint8))
    with pytest.raises(ValueError, match=line + "$"):
        built(100_000, spaces.Box(0, 255, (84, 84, 3), np.uint8))


@pytest.mark.parametrize(
    ("total", "capacity"), [(64e9, 1_000_000), (32e9, 500_000), (16e9, 200_000), (1.5e9, 20_000), (1000, 1)]
)
def test_default_memory_takes_at_most_half_of_the_machine(monkeypatch, total, capacity):
    monkeypatch.setattr(replay_module, "total_bytes", lambda: int(total))
    pixels = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    assert replay_module.default_capacity(1_000_000, pixels, spaces.Discrete(4)) == capacity


def test_available_memory_respects_control_groups(tmp_path, monkeypatch):
    inner = tmp_path / "groups" / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit, used in ((inner, "max", "10"), (inner.parent, "5000", "1000")):
        (folder / "memory.max").write_text(limit + "\n")
        (folder / "memory.current").write_text(used + "\n")
        (folder / "memory.stat").write_text("anon 900\ninactive_file 100\n")
    (tmp_path / "own").write_text("1:cpu:/x\n0::/outer/inner\n")
    assert machine._control_groups(tmp_path / "groups", tmp_path / "own") == [(5000, 4100)]
    monkeypatch.setattr(machine, "_control_groups", lambda: [(5000, 4100)])
    assert (machine.available_bytes(), machine.total_bytes()) == (4100, 5000)
    monkeypatch.setattr(machine, "_control_groups", list)
    assert 10**7 < machine.available_bytes() <= machine.total_bytes() == psutil.virtual_memory().total


@pytest.mark.parametrize(("length", "batch_size", "batches"), [(20, 5, 4), (20, 7, 3), (33, 33, 1)])
def test_a_pass_samples_every_transition_once(length: int, batch_size: int, batches: int) -> None:
    replay = filled(20, length)
    stored = len(replay)
    sample = replay.sample_pass(batch_size=min(batch_size, stored), generator=np.random.default_rng(0))
    indices = sample.indices
    order, filling = indices.reshape(-1)[:stored], indices.reshape(-1)[stored:]
    assert indices.shape == (batches, min(batch_size, stored))
    assert sorted(order) == list(range(stored))
    assert len(set(filling)) == len(filling)
    assert list(order) != sorted(order)
    np.testing.assert_array_equal(replay.gather(sample, gamma=0.9).index, indices)


def test_sampling_is_reproducible_and_gathering_repeatable() -> None:
    replay = filled(20, 33)
    sample = replay.sample(3, 4, generator=np.random.default_rng(1))
    batch = sample_batch(replay, 3, 4, np.random.default_rng(1))
    np.testing.assert_array_equal(sample.indices, batch.index)
    for ours, theirs in zip(replay.gather(sample, gamma=0.9)[:6], batch[:6], strict=True):
        np.testing.assert_array_equal(ours, theirs)
