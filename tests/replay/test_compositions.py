"""Every composition of samplers, n-step returns, relabeling and frame stacks against a plain list."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl.replay import Hindsight, Triplets
from tests.support.replay_history import History, Layout
from tests.support.replay_invariants import equal_trees
from tests.support.replay_model import assert_same

pytestmark = [pytest.mark.backend_free, pytest.mark.slow]

lanes = st.integers(-1, 2)
scores = st.sampled_from([0.0, 0.5, 3.0, 20.0, np.nan])
endings = st.sampled_from([None, None, None, "terminated", "truncated", "both"])
operations = st.lists(
    st.one_of(
        *[st.tuples(st.just("add"), lanes, endings, st.sampled_from([1, 1, 2, 4, 13]))] * 6,
        st.tuples(st.just("interrupt"), lanes, st.booleans()),
        st.tuples(st.just("drop"), st.integers(0, 9)),
        st.tuples(st.just("keep"), st.integers(0, 2**20 - 1)),
        st.tuples(
            st.just("feedback"),
            st.lists(
                st.tuples(st.integers(0, 50), st.sampled_from([0.0, 0.5, 3.0, 20.0, np.nan])), min_size=1, max_size=5
            ),
        ),
        st.tuples(st.just("sample"), st.integers(1, 4)),
        st.tuples(st.just("sample"), st.integers(1, 4)),
        st.tuples(st.just("late_feedback"), st.sampled_from([0.0, 2.0, 9.0])),
        st.tuples(st.just("late_feedback"), st.sampled_from([0.0, 2.0, 9.0])),
        st.tuples(st.just("exponent"), st.sampled_from([0.0, 0.6, 1.0])),
        st.tuples(st.just("clear")),
        st.tuples(st.just("restore"), st.booleans()),
        st.tuples(st.just("look")),
        st.tuples(st.just("look")),
    ),
    max_size=30,
)


@pytest.mark.parametrize("prioritized", [False, True], ids=["uniform", "prioritized"])
@pytest.mark.parametrize(
    ("kind", "frames", "relabel", "n_step"),
    [
        *[("last", None, None, n_step) for n_step in (1, 3)],
        *[("last", 4, None, n_step) for n_step in (1, 3)],
        *[("first", 3, None, n_step) for n_step in (1, 3)],
        ("dict", 2, None, 2),
        ("choices", 2, None, 3),
        ("bits", 3, None, 1),
        *[("goals", None, Hindsight, n_step) for n_step in (1, 3)],
        *[("goals", 2, Hindsight, n_step) for n_step in (1, 3)],
        ("last", None, Triplets, 1),
        ("last", 3, Triplets, 1),
    ],
)
@settings(max_examples=50, deadline=None)
@given(capacity=st.integers(1, 24), disk=st.booleans(), operations=operations)
def test_any_history_leaves_what_a_plain_list_holds(
    kind: str,
    frames: int | None,
    relabel: Any,
    n_step: int,
    prioritized: bool,
    tmp_path_factory: pytest.TempPathFactory,
    capacity: int,
    disk: bool,
    operations: list[Any],
) -> None:
    history, unchecked = (
        History(capacity, Layout(kind, frames), n_step, prioritized, relabel, folder)
        for folder in (tmp_path_factory.getbasetemp() if disk else None, None)
    )
    for operation, *arguments in operations:
        getattr(history, operation)(*arguments)
        if operation != "look":
            getattr(unchecked, operation)(*arguments)
    history.look()
    assert_same(unchecked.replay.get_state(), history.replay.get_state())  # `look` changes nothing
    if prioritized:
        assert equal_trees(unchecked.replay.sampler._synchronized(), history.replay.sampler._tree)
    unchecked.look()


@pytest.mark.parametrize(("before", "new"), [(0, 30), (3, 2), (20, 2), (20, 30)])
def test_ctrl_c_while_episodes_are_updated_leaves_them_consistent(before: int, new: int) -> None:
    for stop_at in range(0, 999, 2):
        history = History(24, Layout("last", 3), 1, prioritized=False)
        history.add(0, None, before)
        history.add(1, "truncated", 1)
        if before:
            history.look()
        history.drop(before // 3)
        history.add(0, None, new // 2)
        history.add(2, None, new // 2)
        finished = not stopped_at(stop_at, lambda history=history: history.replay._storage.episodes)
        history.look()
        if finished:
            break
    assert 20 < stop_at < 900


def stopped_at(stop_at: int, work: Any) -> bool:
    """Call `work`, but raise KeyboardInterrupt at line `stop_at` of episodes.py; return whether it was raised."""
    passed = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.endswith("episodes.py"):
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
