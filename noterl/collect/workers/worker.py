"""A worker process, which steps some lanes of a training, and chooses the actions if the network runs in NumPy.

The process is a new interpreter, which imports neither Keras nor a framework, and never the script of the learner. The
process receives a `Job` and then commands through a pipe. Transitions go back through a ring in shared memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from noterl.acting.actor import Actor
from noterl.acting.numpy_layers import Step, run_program
from noterl.acting.policy_state import NO_STATE, State, as_rows, from_rows
from noterl.collect.env_calls import BadCallError, EnvCall
from noterl.collect.lanes import ScalarLanes
from noterl.collect.team import TeamLanes
from noterl.collect.workers import platforms
from noterl.collect.workers.pickling import dumps
from noterl.collect.workers.shared_memory import ArraySpec, Ring, Shapes, SharedMemory, SharedWeights
from noterl.collect.workers.transitions import RowWriter
from noterl.envs import EnvSource
from noterl.envs.multi_agent.parallel import own_rewards
from noterl.envs.rewards import unclipped
from noterl.noise import with_noise
from noterl.random import Generators
from noterl.types import InfoSpec
from noterl.utils.masks import ACTION_MASK

# The entries of a worker's control array: the number of published rows at which it wakes the learner (0: never), the
# time in ns since which it is inside the environment (0: it is not), whether it ends the phase after its round, the
# number of published rows at which it waits while it collects all the time, and the number of commands that were sent.
WANTED, ENTERED, STOP, LIMIT, SENT = range(5)
CONTROL_SIZE = 8

WAKE = b"wake"

# Seconds between two looks at a ring that is full. The learner is then behind, so the wait costs nothing.
_FULL = 2e-4


class Pipe(Protocol):
    """What a worker needs of the connection to the learner."""

    def recv(self) -> Any:
        """Wait for a command and return the command."""

    def send(self, message: Any) -> None:
        """Send a message."""

    def send_bytes(self, message: bytes) -> None:
        """Send `WAKE`."""


class Forward:
    """The network in NumPy, with the weights that the learner has sent.

    Args:
        program: the network as a NumPy function.
        noise_places: the positions of the noise of a noisy network among the weights.
        start: the state of the policy before the first step of an episode, `[...]` by name.

    Attributes:
        weights: the weights, whose arrays change in place; empty until the worker has its own.
    """

    def __init__(self, program: Step, noise_places: Sequence[int], start: State) -> None:
        self.weights: list[np.ndarray] = []
        self._program = program
        self._noise_places = noise_places
        self._widths = {name: value.size for name, value in start.items()}

    def __call__(self, observations: np.ndarray, noise: np.random.Generator | None = None) -> np.ndarray:
        """Return the outputs `[N, ...]` for observations `[N, ...]`; see `HostForward`."""
        weights = self.weights if noise is None else with_noise(self.weights, self._noise_places, noise)
        return run_program(self._program, observations, weights)

    def with_state(self, observations: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Return the outputs for observations `[N, ...]` and states by name, and the next states."""
        return from_rows(self(as_rows(observations, state, self._widths)), self._widths)


@dataclass
class Job:
    """What a worker receives first.

    Attributes:
        index: the worker's number.
        first: number of the worker's first lane.
        count: number of the worker's lanes.
        num_envs: number of lanes of all workers.
        source: makes the environments.
        actor: chooses the actions, with a `Forward` without weights; None if the learner chooses them.
        shapes: shape and dtype of the network's weights, and of the statistics for normalization.
        generators: the state of the worker's `Generators`, with names as in the learner.
        lanes: the state of the worker's lanes; None to start new episodes.
        specs: the arrays in shared memory.
        info_spec: the fields of `info` that the memory stores; see `Algorithm.info_spec`.
        info_keys: the keys of `info` for the logs.
        calls: the calls of `env_call` that the process that this one replaces has executed.
        takes_mask: whether the head takes action masks; otherwise masks are ignored.
    """

    index: int
    first: int
    count: int
    num_envs: int
    source: EnvSource
    actor: Actor | None
    shapes: Shapes
    generators: dict[str, Any]
    lanes: dict[str, Any] | None
    specs: list[ArraySpec]
    info_spec: InfoSpec
    info_keys: tuple[str, ...]
    calls: tuple[EnvCall, ...] = ()
    takes_mask: bool = True


def ring_of(arrays: Mapping[str, Any], index: int) -> Ring:
    """Return the ring of a worker."""
    prefix = f"ring/{index}/"
    fields = {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
    return Ring(fields, arrays[f"counters/{index}"])


def exploration_name(index: int, name: str) -> str:
    """Return the name of a worker's generator for exploration."""
    return f"worker/{index}/{name}"


class Worker:
    """The lanes of a worker process and the commands that the learner sends.

    Args:
        job: what the worker does.
        arrays: the arrays that the worker shares with the learner.
        pipe: receives commands and sends answers.
    """

    def __init__(self, job: Job, arrays: Mapping[str, Any], pipe: Pipe) -> None:
        self.job: Job = job
        self.pipe: Pipe = pipe
        self._ring = ring_of(arrays, job.index)
        self._control = arrays[f"control/{job.index}"]
        self._own = slice(job.first, job.first + job.count)
        self._arrays = arrays
        self._generators = Generators()
        self._generators.set_state(job.generators)
        if job.source.team is None:
            self.lanes: ScalarLanes = ScalarLanes(job.source, job.count, self._generators, job.first, job.info_spec)
        else:
            self.lanes = TeamLanes(job.source, job.count, self._generators, own_rewards, job.first)
        if not job.takes_mask:
            self.lanes.fields.decline()
        self._writer = RowWriter(self._ring.fields, job.source.observation_space)
        self._begun = np.zeros(job.count, np.bool_)
        self._actor: Actor | None = None
        self._weights: SharedWeights | None = None
        self._statistics: list[str] = []  # the names of the arrays that follow the weights
        self._runs = False
        self._received = 0
        self._next_step = 0
        if job.actor is not None:
            self._weights = SharedWeights(arrays["weights"], arrays["version"], job.shapes)
            self._actor = self._complete(job.actor, self._weights.weights)
        for call in job.calls:
            self.lanes.call(call)
        if job.lanes is not None:
            self.lanes.set_state(job.lanes)
        # Later than `set_state`: if other workers have acted until now, the restored states are those of no policy.
        self.lanes.keep_policy_state(NO_STATE if job.actor is None else job.actor.start)
        self._share_observations()

    def _complete(self, actor: Actor, weights: list[np.ndarray]) -> Actor:
        """Return the actor of the job with the worker's generators and with the weights in shared memory."""

        def generator(name: str) -> np.random.Generator:
            return self._generators(exploration_name(self.job.index, name))

        if actor.normalizers is not None:
            self._statistics = list(actor.normalizers.arrays())
        actor.forward.weights = weights[: len(weights) - len(self._statistics)]
        return replace(actor, generators=generator, first_lane=self.job.first)

    def serve(self) -> None:
        """Execute commands until the learner sends "close" or ends."""
        while True:
            if self._runs and not self._has_command():
                self._run()
            name, *arguments = self.pipe.recv()
            self._received += 1
            if name == "close":
                try:
                    self.job.source.close()
                except Exception as error:  # training has ended, so this is a warning
                    message = f"close() of an environment raised {type(error).__name__}: {error}"
                    self.pipe.send(("warning", "RuntimeWarning", message))
                return
            # "collect", "run", "change", "reset", "step", "await_call", "call" or "send_state"
            getattr(self, name)(*arguments)

    def collect(self, rounds: int | None, step: int, changes: Mapping[str, Any]) -> None:
        """Choose actions and step all lanes, several times with the same weights.

        Args:
            rounds: the number of rounds; None to go on until an episode has ended in each lane.
            step: environment steps of the training before the first round.
            changes: what has changed since the last call, for `change`.
        """
        self.change(changes)
        self._read_weights()
        pending = np.ones(self.job.count, np.bool_)
        number = 0
        while not self._control[STOP] and (pending.any() if rounds is None else number < rounds):
            self._collect_round(step + number * self.job.num_envs)
            pending &= self.lanes.ledger.running
            number += 1

    def run(self, step: int) -> None:
        """Choose actions and step all lanes until the learner sends `send_state`; `step` is as for `collect`."""
        self._runs = True
        self._next_step = step

    def _run(self) -> None:
        """Collect with the newest weights until the learner sends a command."""
        ring = self._ring
        control = self._control
        count = self.job.count
        while not self._has_command():
            if ring.published + count > control[LIMIT]:  # the learner allows no further round yet
                time.sleep(_FULL)
                continue
            self._read_weights()
            self._collect_round(self._next_step)
            self._next_step += self.job.num_envs

    def _has_command(self) -> bool:
        """Return whether a command is waiting to be received."""
        return bool(self._control[SENT] != self._received or self._control[STOP])

    def _read_weights(self) -> None:
        """Use the newest weights and statistics for normalization."""
        weights = self._weights
        assert weights is not None and self._actor is not None
        before = weights.version
        while not weights.read():
            time.sleep(_FULL)
        if self._statistics and weights.version != before:
            arrays = weights.weights[-len(self._statistics) :]
            self._actor.normalizers.set_arrays(dict(zip(self._statistics, arrays, strict=True)))

    def change(self, changes: Mapping[str, Any]) -> None:
        """Set attributes of the explorer that a callback has changed."""
        assert self._actor is not None
        for name, value in changes.items():
            setattr(self._actor.explorer, name, value)

    def _collect_round(self, step: int) -> None:
        """Reset idle lanes, choose actions, step all lanes and publish the rows."""
        lanes = self.lanes
        actor = self._actor
        assert actor is not None
        for lane in lanes.idle():
            self._reset(lane, step)
            actor.reset_noise(lane)
        mask = lanes.fields.values.get(ACTION_MASK) if actor.head.takes_mask else None
        actions, state = actor.choose_actions(lanes.observations(), step, None, mask, lanes.ledger.policy_state.values)
        actor.explorer.skip(self.job.num_envs - self.job.count)  # the steps of the other workers
        self._step(actions, actor.head.executed(actions), step, state)

    def reset(self, lanes: Sequence[int], step: int) -> None:
        """Start episodes in some lanes; called if the learner chooses the actions."""
        for lane in lanes:
            self._reset(lane, step)
        self._share_observations()
        self._arrays["fresh"][[self.job.first + lane for lane in lanes]] = True
        self.pipe.send_bytes(WAKE)

    def step(self, step: int) -> None:
        """Step all lanes with the actions that the learner has chosen."""
        actions = self._arrays["actions"][self._own]
        self._step(actions, actions, step, NO_STATE)

    def await_call(self, number: int) -> None:
        """Send the number of the call that this process is about to receive."""
        self.pipe.send(("awaits_call", number))

    def call(self, number: int, pickled: bytes) -> None:
        """Call a method of every environment, and send the results; an error of the method does not end this process.

        Args:
            number: of the call, for the answer.
            pickled: the `EnvCall`.
        """
        self._control[ENTERED] = time.monotonic_ns()
        try:
            call: EnvCall = pickle.loads(pickled)
            answer = dumps(self.lanes.call(call), f"{call}: its results")
        except BadCallError as error:
            answer = pickle.dumps(error)
        except Exception as error:
            summary = "; ".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
            answer = pickle.dumps((summary, traceback.format_exc()))
        self._control[ENTERED] = 0
        self.pipe.send(("called", number, answer))

    def _share_observations(self) -> None:
        """If the learner chooses the actions, write the observations and fields of `info` to shared memory."""
        if self._actor is None:
            self._arrays["encoded"][self._own] = self.lanes.observations()
            for name, values in self.lanes.info.items():
                self._arrays[f"current/{name}"][self._own] = values

    def send_state(self) -> None:
        """Send the state of the lanes, of the generators, and of the policy or noise; "run" ends."""
        self._runs = False
        state = {
            "lanes": self.lanes.get_state(),
            "generators": self._generators.get_state()["states"],
            "explorer": None if self._actor is None else self._actor.explorer.get_state(),
        }
        self.pipe.send(("state", state))

    def _reset(self, lane: int, step: int) -> None:
        """Start an episode in a lane; the next row of the lane then has "begun"."""
        self._control[ENTERED] = time.monotonic_ns()
        self.lanes.reset(lane, 0, step)  # the learner numbers the episodes
        if self.lanes.fields.offered:
            raise ValueError(
                f"env: info[{ACTION_MASK!r}] must be in the info that every reset returns, because workers look for it "
                "only once, before they start"
            )
        self._control[ENTERED] = 0
        self._begun[lane] = True

    def _step(self, chosen: np.ndarray, executed: np.ndarray, step: int, state: State) -> None:
        """Step all lanes, and publish the rows together, so that the learner never reads a part of a round.

        Args:
            chosen: the actions that the agent chose.
            executed: the actions that environments receive.
            step: environment steps of the training before the round.
            state: the state of the policy after the step, which rows do not hold: theirs is the state before.
        """
        ring = self._ring
        lanes = self.lanes
        control = self._control
        count = self.job.count
        while ring.space < count:
            time.sleep(_FULL)
        first = ring.place()
        updates = 0 if self._weights is None else self._weights.updates
        states = lanes.ledger.policy_state
        outputs = None if self._actor is None else self._actor.values
        self._writer.write_round(slice(first, first + count), chosen, self._begun, updates, states.values, outputs)
        self._begun[:] = False
        states.advance(state)
        lanes.begin_round(executed)
        for lane in range(count):
            control[ENTERED] = time.monotonic_ns()
            (transition,) = lanes.tick(step + self.job.first + lane + 1)
            control[ENTERED] = 0
            self._writer.write(first + lane, transition, unclipped(transition.reward, lanes.step_info))
            if transition.extra is not None:
                self._writer.write_extra(first + lane, transition.extra)
            if self.job.info_keys:
                self._writer.write_info(first + lane, lanes.step_info, self.job.info_keys)
            if transition.terminated or transition.truncated:
                lanes.ledger.finish(lane)
        self._share_observations()
        ring.publish(count)
        wanted = control[WANTED]
        if wanted and ring.published >= wanted:
            control[WANTED] = 0  # the learner is woken once
            self.pipe.send_bytes(WAKE)


def serve(job: bytes, arrays: Callable[[Job], Mapping[str, Any]], pipe: Pipe) -> None:
    """Execute the commands of the learner until it sends "close"; send warnings and an exception to the learner.

    Args:
        job: a pickled `Job`.
        arrays: returns the arrays that the worker shares with the learner.
        pipe: receives commands and sends answers.
    """
    warnings.showwarning = lambda message, category, *_, **__: pipe.send(("warning", category.__name__, str(message)))
    try:
        unpickled = pickle.loads(job)
        worker = Worker(unpickled, arrays(unpickled), pipe)
        pipe.send(("ready", worker.lanes.ledger.running))
        worker.serve()
    except BaseException as error:
        with contextlib.suppress(OSError):  # the learner has ended, and this is the error of `recv`
            pipe.send(("error", f"{type(error).__name__}: {error}", traceback.format_exc()))


def main(memory: int, pipe: int) -> None:
    """Run a worker process until the learner ends the process, or ends itself.

    Args:
        memory: the descriptor of the shared memory.
        pipe: the descriptor of the pipe to the learner.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all processes; the learner handles it
    # As a manager of jobs sends SIGTERM. A function, because programs that environments start would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    platforms.end_after_parent()

    def watch() -> None:
        # The pipe closes when the learner's process ends, even by a kill while this process is inside an environment.
        # The processes that environments have started end too, which `end_after_parent` alone does not achieve.
        platforms.wait_for_parent(pipe)
        platforms.end_own_group()

    threading.Thread(target=watch, daemon=True).start()
    connection = platforms.open_pipe(pipe)
    try:
        with contextlib.suppress(EOFError, OSError):  # the learner has ended before it has sent the job
            serve(connection.recv_bytes(), lambda job: SharedMemory(job.specs, memory).arrays, connection)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # without the teardown of the interpreter, the process ends in milliseconds
