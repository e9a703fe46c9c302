"""A tape: one list of everything that happens to environments, the agent and callbacks, in order.

The agent has no network. Its updates and hard copies are entries on the tape, so nothing is compiled and the tape is
the same on every backend.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.acting.actor import Actor
from noterl.backends.common import GroupResult
from noterl.callback import CHECKPOINT, EVENTS, Callback, LambdaCallback
from noterl.learning.replay_learner import ReplayLearner
from noterl.policies import GreedyQPolicy
from noterl.training.parts import Parts

# Functions that run when an entry is written, for example to raise an error: (entry, occurrence from 1) -> function.
Acts = dict[tuple[str, int], Callable[[], None]]


class Tape(list):
    """A list of entries. Each function in `acts` runs when its entry is written for the n-th time, from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: Acts = {}
        self._times: Counter[str] = Counter()

    def write(self, entry: str, act: str | None = None) -> None:
        """Write an entry; `act` is its name in `acts`, by default the entry itself."""
        self.append(entry)
        key = act or entry
        self._times[key] += 1
        action = self.acts.pop((key, self._times[key]), None)
        if action is not None:
            action()

    def take(self) -> list[str]:
        """Return the entries since the last call."""
        entries = list(self)
        self.clear()
        return entries


class TapeEnv(gymnasium.Env):
    """Writes "reset <lane>" and "step <lane>"; its episodes last `length` steps and every reward is 1.

    If writing the entry of a step raises, the environment must be reset before the next step.
    """

    def __init__(self, tape: Tape, lane: int, length: int) -> None:
        self.tape, self.lane, self.length = tape, lane, length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps: int | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.steps = None
        self.tape.write(f"reset {self.lane}")
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.steps is not None, "stepped without a reset"
        assert self.steps < self.length, "stepped after the episode's end"
        self.steps += 1
        try:
            self.tape.write(f"step {self.lane}")
        except BaseException:
            self.steps = None
            raise
        return np.full(2, self.steps / self.length, np.float32), 1.0, self.steps == self.length, False, {}


class TapeLearner(ReplayLearner):
    """Writes "update <count>" instead of making updates."""

    def update(self, batch: Any, count: int) -> GroupResult:
        agent: Any = self.algorithm
        agent.tape.write(f"update {count}", "update")
        losses = np.full(len(batch.reward), np.nan, np.float32)  # batches beyond `count` are padding
        losses[:count] = [next(agent.losses) for _ in range(count)]
        finite = np.isfinite(losses[:count])
        applied = count if finite.all() else int(finite.argmin())
        return GroupResult({"loss": losses}, agent.feedback(batch), applied)


class TapeForward:
    """A forward pass whose output is always 0."""

    stale = False

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return np.zeros((len(observations), self.outputs), np.float32)

    def target_moved(self) -> None:
        pass

    def weights_updated(self, weights: Any) -> None:
        pass


class TapeParts(Parts):
    """The parts of a `TapeAgent`."""

    @property
    def actor(self) -> Actor:
        return self.build()[1]

    def build(self) -> tuple[TapeLearner, Actor]:
        algorithm: Any = self.algorithm
        if self.built_actor is None:
            settings: Any = self.settings
            learner = TapeLearner(
                algorithm,
                replay=settings.replay,
                schedule=settings.schedule,
                optimizers=settings.optimizers,
                steps_per_execution=settings.steps_per_execution,
            )
            learner.declare_memory()
            learner.build_memory()
            learner.is_declared = learner.is_built = True
            dtype, generators = algorithm.observation_dtype, algorithm.generators
            starts = settings.schedule.learning_starts
            forward = TapeForward(algorithm.action_size)
            self.built_actor = Actor(
                forward, algorithm.head, settings.policy, generators=generators, dtype=dtype, learning_starts=starts
            )
            self._learner = learner
        return self._learner, self.built_actor


class TapeAgent(noterl.Agent):
    """Writes "update <count>" and "target" instead of making updates; their logs hold `losses` in order."""

    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env: Any, *, tape: Any, seed: int | None = 0) -> None:
        super().__init__(env, seed=seed)
        self._set(_parts=TapeParts(self))
        self.tape = tape
        self.losses = iter(range(10**6))

    def feedback(self, batch: Any) -> dict[str, Any]:
        """Return the feedback of updates."""
        return {}

    def update_target(self) -> None:
        self.tape.write("target")


class Recorder(Callback):
    """Writes every event, after the name of the recorder if it has one."""

    def __init__(self, tape: Tape, name: str = "", *, order: int = 0, live: bool = False) -> None:
        self.tape, self.prefix = tape, f"{name} " if name else ""
        self.order, self.needs_live_updates = order, live

    def _write(self, event: str, *words: Any) -> None:
        name = self.prefix + event
        self.tape.write(" ".join(str(word) for word in (name, *words)), name)

    def on_train_begin(self, logs):
        self._write("train_begin")

    def on_train_end(self, logs):
        self._write("train_end")

    def on_episode_begin(self, episode, logs):
        self._write("episode_begin", episode)

    def on_episode_end(self, episode, logs):
        self._write("episode_end", episode, *(() if logs["complete"] else ("cut", logs["length"])))

    def on_batch_begin(self, batch, logs):
        self._write("batch_begin", batch)

    def on_batch_end(self, batch, logs):
        self._write("batch_end", batch, *(f"{name}={value:g}" for name, value in logs.items()))

    def on_evaluate_begin(self, logs):
        self._write("evaluate_begin")

    def on_evaluate_end(self, logs):
        self._write("evaluate_end", *(["nothing"] if not logs else []))

    def on_exception(self, error):
        self._write("exception", type(error).__name__)


assert all(event in vars(Recorder) for event in EVENTS if not event.startswith(("on_step", "on_epoch")))


def taped(tape: Tape, *, length: int = 2, **compiled: Any) -> TapeAgent:
    """Return an agent that makes two updates every second step, and a hard copy every third step."""
    lanes = iter(range(10**6))
    agent = TapeAgent(lambda: TapeEnv(tape, next(lanes), length), tape=tape)
    settings = {"batch_size": 1, "learning_starts": 1, "update_every": 2, "updates": 2, "target_update": 3}
    agent.compile(policy=GreedyQPolicy(), replay=noterl.Replay(100), **{**settings, **compiled})
    return agent


# The tape of `fit(episodes=2)` with the agent that `taped` returns.
PLAIN = """
    train_begin
    reset 0; episode_begin 0
    step 0
    step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
    reset 0; episode_begin 1
    step 0; target
    step 0; update 2; batch_begin 2; batch_end 2 loss=2; batch_begin 3; batch_end 3 loss=3; episode_end 1
    train_end
"""


class Broken(RuntimeError):
    """Raised by the tests."""


def lines(text: str) -> list[str]:
    """Return the entries of a text, which has one on each line, or several separated by semicolons."""
    return [entry.strip() for line in text.strip().splitlines() for entry in line.split(";")]


def broken(*_: Any) -> None:
    raise Broken("on purpose")


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def sigint(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def sigterm(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def fit(tape: Tape, agent: TapeAgent, *, live: bool = False, **arguments: Any) -> list[str]:
    agent.fit(callbacks=[Recorder(tape, live=live)], verbose=0, **arguments)
    return tape.take()


def failing_fit(tape: Tape, agent: TapeAgent, error: type[BaseException], **arguments: Any) -> list[str]:
    with pytest.raises(error):
        fit(tape, agent, **arguments)
    return tape.take()


def steps_of(tape: list[str]) -> list[int]:
    """Return the lanes in the order in which they were stepped."""
    return [int(entry.split()[1]) for entry in tape if entry.startswith("step")]


def updates_of(tape: list[str]) -> int:
    return sum(int(entry.split()[1]) for entry in tape if entry.startswith("update"))


class RewardsEnv(gymnasium.Env):
    """Has episodes of one step with the given rewards; the last reward is repeated."""

    def __init__(self, rewards: Sequence[float]) -> None:
        self.rewards, self.episode = rewards, -1
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.episode = min(self.episode + 1, len(self.rewards) - 1)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(self.rewards[self.episode]), True, False, {}


def rewarded(rewards: Sequence[float], kind: type[TapeAgent] = TapeAgent, **compiled: Any) -> TapeAgent:
    """Return an agent whose episodes have these rewards; it makes no updates unless `compiled` changes that."""
    agent = kind(lambda: RewardsEnv(rewards), tape=Tape())
    settings = {"batch_size": 1, "learning_starts": 0, "update_every": 10**9}
    agent.compile(policy=GreedyQPolicy(), replay=noterl.Replay(100), **{**settings, **compiled})
    return agent


def at(episode: int, act: Callable[[], Any]) -> LambdaCallback:
    """Return a callback that calls `act` after all other callbacks, at the end of episode number `episode`, from 1."""
    callback = LambdaCallback(on_episode_end=lambda number, logs: act() if number == episode - 1 else None)
    callback.order = CHECKPOINT
    return callback
