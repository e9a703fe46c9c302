"""Two presses of Ctrl-C at a line of the library, and what must hold for an agent after them.

`python -m tests.support.injection --tries 2000` does so at random lines, in turn for each kind of run.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np

import noterl
from noterl import callbacks
from noterl.replay import Prioritized
from noterl.training.loop import Stepping
from noterl.types import Transition
from tests.support.parts import lanes_of
from tests.support.states import assert_same_state

LIBRARY = str(Path(noterl.__file__).parent)
CATALOGUE = str(Path(callbacks.__file__).parent)


class Presses:
    """Presses Ctrl-C, by the handler of the signal, when a line of the library is reached.

    Args:
        line: the number of the line, counted from the first one that is executed inside the context.
        presses: how often.

    Attributes:
        lines: number of lines so far.
        where: the place of the presses; None before them.
        is_open: whether an environment or a callback was running, so that the second press was raised at once.
    """

    def __init__(self, line: float, guard: Any, presses: int = 2) -> None:
        self._line, self._guard, self._presses = line, guard, presses
        self.lines, self.where, self.is_open = 0, None, False

    def __enter__(self) -> Presses:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._trace if frame.f_code.co_filename.startswith((LIBRARY, CATALOGUE)) else None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "line":
            return self._trace
        self.lines += 1
        if self.lines != self._line:
            return self._trace
        sys.settrace(None)
        self.is_open = self._guard.is_open
        self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        for _ in range(self._presses):
            signal.raise_signal(signal.SIGINT)
        return None


def dqn(env: Any = "CartPole-v1") -> noterl.DQN:
    agent = noterl.DQN(env, hidden=(4,), normalize_observation=True, seed=1)
    memory = noterl.Replay(300, sampler=Prioritized(), n_step=2)
    agent.compile(replay=memory, batch_size=8, learning_starts=20, update_every=3, updates=2)
    return agent


def ppo() -> noterl.PPO:
    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=8, epochs=1, normalize_reward=True, seed=1)
    agent.compile(batch_size=8)
    return agent


def recurrent_dqn() -> noterl.DQN:
    cell = {"recurrent": "lstm", "recurrent_units": 4, "sequence_length": 4, "burn_in": 2}
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1, **cell)
    agent.compile(replay=300, batch_size=4, learning_starts=20, update_every=3)
    return agent


def recurrent_ppo() -> noterl.PPO:
    cell = {"recurrent": "gru", "recurrent_units": 4, "sequence_length": 4}
    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=8, epochs=1, seed=1, **cell)
    agent.compile(batch_size=8)
    return agent


def sac() -> noterl.SAC:
    agent = noterl.SAC("Pendulum-v1", hidden=(4,), seed=1)
    agent.compile(replay=300, batch_size=8, learning_starts=20, update_every=3)
    return agent


def maddpg() -> noterl.MADDPG:
    agent = noterl.MADDPG(lambda: noterl.envs.Signals(symbols=3), hidden=(4,), seed=1)
    agent.compile(replay=300, batch_size=8, learning_starts=20, update_every=6)
    return agent


def alphazero() -> noterl.AlphaZero:
    agent = noterl.AlphaZero(noterl.envs.games.TicTacToe(), simulations=4, hidden=(4,), seed=1)
    agent.compile(replay=300, batch_size=8, learning_starts=20)
    return agent


def on_device() -> noterl.PPO:
    return noterl.PPO(noterl.envs.functional_cartpole(), hidden=(4,), rollout_steps=8, epochs=1, seed=1)


RUNS: dict[str, tuple[Callable[[], noterl.Agent], dict[str, Any]]] = {
    "lanes": (dqn, {"num_envs": 2}),
    "rollouts": (ppo, {"num_envs": 2}),
    "Box": (sac, {}),
    "recurrent DQN": (recurrent_dqn, {"num_envs": 2}),
    "recurrent PPO": (recurrent_ppo, {"num_envs": 2}),
    "vector": (dqn, {"num_envs": 2, "vectorize": True}),
    "team": (maddpg, {"num_envs": 2}),
    "search": (alphazero, {"num_envs": 2}),
    "workers": (dqn, {"num_envs": 2, "workers": 2}),
    "device": (on_device, {"num_envs": 2}),
}
STEPS = 24


class Interrupted:
    """An agent whose `fit` calls are interrupted.

    Args:
        run: of `RUNS`.
        folder: for files of the agent and of callbacks.
    """

    def __init__(self, run: str, folder: Path) -> None:
        self.build, self.arguments = RUNS[run]
        self.agent, self.folder = self.build(), folder
        self.guard = self.agent._parts.session.guard
        self.agent.fit(steps=60, verbose=0, **self.arguments)
        self.lost = self.cut_episodes()
        self.is_exact = True  # whether no second press was raised at once
        with Presses(float("inf"), self.guard) as presses:
            self.fit(STEPS)
        self.lines = presses.lines

    def fit(self, steps: int) -> None:
        """Train with callbacks that write files."""
        used = [callbacks.CSVLogger(self.folder / "log.csv", 1), callbacks.Checkpoint(self.folder / "files", 2)]
        discard = Stepping.discard

        def count(stepping: Stepping, transitions: tuple[Transition, ...]) -> None:
            # A vector environment cannot continue an episode whose last step was beyond the budget.
            self.lost += sum(transition.terminated or transition.truncated for transition in transitions)
            discard(stepping, transitions)

        with mock.patch.object(Stepping, "discard", count):
            self.agent.fit(steps=steps, callbacks=used, verbose=0, **self.arguments)

    def cut_episodes(self) -> int:
        """Return the number of episodes that have begun, are not counted, and do not continue."""
        state = self.agent.get_state()
        counters, lanes = state["counters"], state["lanes"]
        if lanes is None:  # a vector environment whose step was interrupted
            return counters["episodes_begun"] - counters["episodes"]
        ledger = lanes["ledger"]
        return counters["episodes_begun"] - counters["episodes"] - sum(ledger["running"]) - len(ledger["over"])

    def interrupt(self, line: float, presses: int = 2) -> Presses:
        """Press Ctrl-C at a line of a `fit`, and check the agent."""
        steps = self.agent.steps
        with Presses(line, self.guard, presses) as pressed:
            try:
                self.fit(STEPS)
            except KeyboardInterrupt:
                pass
            else:
                assert pressed.where is None, f"no KeyboardInterrupt after {pressed.where}"
        self.is_exact = self.is_exact and not (pressed.is_open and presses > 1)
        assert steps <= self.agent.steps <= steps + STEPS
        self.check(pressed)
        return pressed

    def check(self, pressed: Presses) -> None:
        """Check that memory, counters, lanes and files agree, and that the agent trains."""
        agent = self.agent
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert not self.guard.is_open
        assert self.guard.pending is None
        assert not agent._parts.session.is_training
        if agent.replay is not None:
            assert agent.get_state()["replay"]["count"] == agent.steps
        cut = self.cut_episodes()
        # An episode ends only if its environment was interrupted; all of a vector environment do.
        assert cut == self.lost or (pressed.is_open and cut <= self.lost + self.arguments.get("num_envs", 1))
        self.lost = cut
        self._check_observations()
        agent.save(self.folder / "agent.noterl")
        noterl.load(self.folder / "agent.noterl").close()
        steps = agent.steps
        self.fit(2)
        assert agent.steps == steps + 2
        for optimizer in agent.optimizers.values():  # on the device, updates count when their hooks are called
            assert int(optimizer.iterations) == agent.updates or len(agent.optimizers) > 1
        self.lost = self.cut_episodes()

    def _check_observations(self) -> None:
        """Check that each lane's observation is that of its environment."""
        lanes = self.agent._parts.session.lanes
        if lanes is None or self.agent.spaces.source.describe().get("id") != "CartPole-v1":
            return
        for lane, environment in enumerate(lanes.environments):
            if lanes.ledger.running[lane]:
                state = np.asarray(environment.unwrapped.state, np.float32)
                assert lanes_of(self.agent)._observations[lane].tolist() == state.tolist()

    def assert_exact(self) -> None:
        """Compare with an agent that was not interrupted."""
        other = self.build()
        other.fit(steps=self.agent.steps, verbose=0, **self.arguments)
        first, second = self.agent.get_state(), other.get_state()
        first["callbacks"] = second["callbacks"] = {}
        assert_same_state(first, second)


def main() -> None:
    """Interrupt runs at random lines, and print how many agents were broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="*", default=list(RUNS))
    options = parser.parse_args()
    rng, outcomes = random.Random(options.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for run in options.runs:
            interrupted = Interrupted(run, Path(folder, run))
            for _ in range(options.tries // len(options.runs)):
                line = rng.randrange(1, interrupted.lines)
                try:
                    pressed = interrupted.interrupt(line)
                    outcomes["raised at once" if pressed.is_open else "after the step"] += 1
                except Exception as error:
                    outcomes["broken"] += 1
                    [*_, last] = traceback.extract_tb(error.__traceback__)
                    print(f"{run}, line {line}: {type(error).__name__}: {error} in {last.line}", flush=True)
                    interrupted = Interrupted(run, Path(folder, f"{run}-{outcomes['broken']}"))
            print(run, dict(outcomes), flush=True)


if __name__ == "__main__":
    main()
