"""States of replay memories: saving, restoring, damaged states, invariants, interruptions."""

import sys

import numpy as np
import pytest
from gymnasium import spaces

from noterl.replay import Replay
from tests.support.replay_invariants import check_replay
from tests.support.replay_model import SPACES, assert_same, built, filled, sample_batch, store

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("count", [0, 5, 20, 33])
def test_restored_memory_continues_exactly(count, tmp_path):
    first, second = filled(20, count, lanes=2), built(20)
    second.set_state(through_a_file(first.get_state(), tmp_path))
    generators = [np.random.default_rng(1), np.random.default_rng(1)]
    for step in range(count, count + 30):
        batches = []
        for replay, generator in zip((first, second), generators, strict=True):
            store(replay, step, lanes=2)
            batches.append(list(sample_batch(replay, 3, 1, generator)))
        assert_same(*batches)
        assert_same(second.get_state(), first.get_state())
        check_replay(second)
    assert first._storage.successor.min() < 0 < first._storage.successor.max()


def through_a_file(tree, folder):
    """Return the tree with arrays read from a file, so that none shares memory with the replay."""
    if isinstance(tree, dict):
        return {name: through_a_file(part, folder) for name, part in tree.items()}
    if isinstance(tree, list):
        return [through_a_file(part, folder) for part in tree]
    if isinstance(tree, np.ndarray):
        np.save(folder / "array.npy", tree, allow_pickle=False)
        return np.load(folder / "array.npy", allow_pickle=False)
    assert isinstance(tree, int)
    return tree


def test_state_holds_views_of_the_stored_transitions_only():
    replay = filled(20, 33)
    columns = replay.get_state()["columns"]
    assert [sum(map(len, segments)) for segments in columns.values()] == [20] * len(columns)
    assert all(np.shares_memory(piece, replay._storage.observation) for piece in columns["observation"])
    replay = filled(20, 3)
    assert [len(piece) for piece in replay.get_state()["columns"]["observation"]] == [3]


def test_state_does_not_contain_n_step():
    far, near = Replay(20, n_step=3), built(20)
    far.build(SPACES["vector"], spaces.Discrete(5))
    for step in range(33):
        store(far, step)
    near.set_state(far.get_state())
    plain, same = (sample_batch(each, 2, 8) for each in (near, filled(20, 33)))
    assert_same(list(plain), list(same))


def test_memory_before_build_has_an_empty_state():
    assert Replay(5).get_state() == {}
    replay = filled(20, 7)
    replay.set_state({})
    assert len(replay) == 0
    with pytest.raises(RuntimeError, match="call build"):
        Replay(5).set_state(filled(5, 3).get_state())


def damage(path, value):
    def apply(state):
        target = state
        for name in path[:-1]:
            target = target[name]
        if value is KeyError:
            del target[path[-1]]
        else:
            target[path[-1]] = value(target[path[-1]])

    return apply


def poke(position, number):
    def change(array):
        array = array.copy()
        array[position] = number
        return array

    return change


DAMAGES = {
    "another capacity": (damage(["capacity"], lambda _: 21), r"\['capacity'\] must be 20, got 21"),
    "negative begin": (damage(["begin"], lambda _: -1), r"\['begin'\]"),
    "float count": (damage(["count"], float), r"\['count'\]"),
    "count too large": (damage(["count"], lambda count: count + 1), r"\['count'\]"),
    # Numbers of transitions are int64 in arrays, and would overflow some transitions later.
    "count near 2**63": (
        lambda state: state.update(begin=2**63 - 40, count=2**63 - 20),
        r"\['begin'\] must be an int of at least 0 and at most",
    ),
    "column missing": (damage(["columns", "reward"], KeyError), r"\['columns'\] must be a dict with the keys"),
    "columns not a dict": (damage(["columns"], lambda _: [1]), r"\['columns'\]"),
    "column too short": (damage(["columns", "reward"], lambda pieces: pieces[:1]), r"\['reward'\] must have 20 rows"),
    "column without arrays": (damage(["columns", "reward"], lambda _: []), r"\['reward'\] must have 20 rows"),
    "column not a list": (damage(["columns", "action"], lambda pieces: pieces[0]), r"\['action'\] must be a list"),
    "dtype": (damage(["columns", "lane"], lambda pieces: [piece.astype(float) for piece in pieces]), r"\['lane'\]"),
    "shape": (
        damage(["columns", "observation"], lambda pieces: [piece[:, :2] for piece in pieces]),
        r"\['observation'\]\[0\]",
    ),
    "final observation missing": (damage(["apart"], lambda pieces: [pieces[0][1:]]), r"\['apart'\] must have 3 rows"),
    "successor not stored": (damage(["distance"], poke(0, 25)), "not stored"),
    "successor older": (damage(["distance"], poke(3, -1)), "older than its transition"),
    "successor shared": (damage(["distance"], poke(2, 2)), "same successor"),
    "successor after the end": (
        damage(["columns", "terminated"], lambda pieces: [piece | True for piece in pieces]),
        "ended an episode",
    ),
    "successor of another lane": (
        damage(["columns", "lane"], lambda pieces: [poke(1, 5)(pieces[0]), *pieces[1:]]),
        "another lane",
    ),
    "newest of another lane": (
        damage(["heads", "lane"], poke(0, 3)),
        "newest transition of a lane belongs to another",
    ),
    "newest not stored": (damage(["heads", "age"], poke(0, 20)), "newest transition of a lane is not stored"),
    "newest not the newest": (damage(["heads", "age"], poke(0, 0)), "newest transition of a lane ended"),
    "two newest": (
        damage(["heads"], lambda heads: {name: np.repeat(array, 2) for name, array in heads.items()}),
        "two newest transitions",
    ),
    "masked not stored": (damage(["hidden"], lambda _: np.array([3, 20])), "masked transitions are not stored"),
    "masked not in order": (damage(["hidden"], lambda _: np.array([3, 3])), "not in order of age"),
    "sampler not empty": (damage(["sampler"], lambda _: {"tree": 1}), r"\['sampler'\] of a Uniform must be empty"),
    "sampler not a dict": (damage(["sampler"], lambda _: None), r"\['sampler'\] must be dict"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_state_raises_and_changes_nothing(name):
    apply, message = DAMAGES[name]
    state = filled(20, 33).get_state()
    apply(state)
    replay = filled(20, 8)
    before = filled(20, 8).get_state()
    with pytest.raises(ValueError, match=message):
        replay.set_state(state)
    assert_same(replay.get_state(), before)


def test_check_names_the_broken_invariant():
    def broken(change):
        replay = filled(20, 33)
        check_replay(replay)
        change(replay._storage)
        with pytest.raises(AssertionError) as caught:
            check_replay(replay)
        return str(caught.value)

    newest = 32 % 20
    assert "from begin" in broken(lambda storage: setattr(storage, "begin", 40))
    assert "stored transitions" in broken(lambda storage: setattr(storage, "begin", 3))
    assert "beyond" in broken(lambda storage: storage.successor.__setitem__(3, 20))
    assert "used twice" in broken(lambda storage: storage.free_slots.append(-1 - int(storage.successor[newest])))
    assert "never allocated" in broken(lambda storage: storage.free_slots.append(500))
    assert "than exist" in broken(lambda storage: setattr(storage, "num_slots", 1000))
    assert "older" in broken(lambda storage: storage.successor.__setitem__(3, 2))
    assert "newest transition of a lane" in broken(lambda storage: storage.newest_index.__setitem__(0, 3))
    assert "another lane" in broken(lambda storage: storage.lane.__setitem__(3, 1))
    assert "ended" in broken(lambda storage: storage.truncated.__setitem__(3, True))


@pytest.mark.parametrize("count", [1, 5, 6, 7, 8, 9, 12, 14, 15, 17, 18])
def test_ctrl_c_on_any_line_of_add_leaves_a_consistent_memory(count):
    for stop_at in range(100):
        replay = filled(6, count, lanes=2)
        storage = replay._storage
        finished = not stopped_at_line(stop_at, lambda replay=replay: store(replay, count, lanes=2))
        lanes = dict.fromkeys(range(count + 1), 2)
        assert storage.count == count + 1 if finished else storage.count in (count, count + 1)
        assert len(replay) >= min(count, 5)
        assert_counts(replay, lanes)
        other = built(6)
        other.set_state(replay.get_state())
        assert_counts(other, lanes)
        for step in range(storage.count, storage.count + 20):
            store(replay, step, lanes=3)
            lanes[step] = 3
            assert_counts(replay, lanes)
        if finished:
            break
    assert 15 < stop_at < 99


def assert_counts(replay, lanes):
    """Check that every stored transition holds its number, and its next observation the number plus `lanes`."""
    check_replay(replay)
    storage = replay._storage
    insertion_numbers = np.arange(storage.begin, storage.count)
    rows = insertion_numbers % replay.capacity
    assert storage.observations(rows)[:, 0].tolist() == insertion_numbers.tolist()
    assert storage.reward[rows].tolist() == insertion_numbers.tolist()
    expected = [number + lanes[number] for number in insertion_numbers.tolist()]
    assert storage.next_observations(rows)[:, 0].tolist() == expected


def stopped_at_line(stop_at, work, files=("storage.py",)):
    """Call `work`, but raise KeyboardInterrupt at line `stop_at` of these files; return whether it was raised."""
    passed = 0

    def trace(frame, event, argument):
        nonlocal passed
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line":
            passed += 1
            if passed > stop_at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
