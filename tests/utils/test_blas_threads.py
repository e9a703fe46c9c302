"""NumPy's BLAS has one thread while a tree search runs, and its own number of threads afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import noterl
from noterl.acting import search_actor
from noterl.envs.games import TicTacToe
from noterl.utils.cores import one_blas_thread


def threads() -> list[int]:
    """Return the number of threads of the BLAS library that NumPy uses; frameworks may load others."""
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return [library.num_threads for library in libraries if "numpy" in library.filepath] or [
        library.num_threads for library in libraries[:1]
    ]


@pytest.mark.backend_free
def test_context_sets_one_thread_and_restores_the_number() -> None:
    before = threads()
    assert before, np.show_config(mode="dicts")
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        assert set(threads()) == {1}
        raise ZeroDivisionError
    assert threads() == before


@pytest.mark.backends("torch")
def test_search_runs_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Watched(search_actor.Tree):
        def run(self, simulations: int) -> None:
            seen.extend(threads())
            super().run(simulations)

    monkeypatch.setattr(search_actor, "Tree", Watched)
    agent = noterl.AlphaZero(TicTacToe(), simulations=2, hidden=(4,), seed=0)
    agent.compile(replay=100, batch_size=8, learning_starts=50)
    before = threads()
    agent.fit(steps=4, verbose=0)
    assert set(seen) == {1}
    assert threads() == before
