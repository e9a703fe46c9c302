"""`RayActor`: a worker in an actor of Ray, which exchanges messages and rows with the learner by calls.

The worker is the same as in a process of this machine, with the same arrays, but in the memory of the actor. The
learner sends commands, weights and the limits of the ring, and polls rows and answers.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import ray

from noterl.collect.workers.shared_memory import Array, ArraySpec, Shapes, SharedWeights
from noterl.collect.workers.worker import ENTERED, LIMIT, SENT, STOP, WAKE, WANTED, ring_of, serve

# Seconds between two replies to the learner if the worker has only rows to return, and if there is nothing to return.
_PAUSE = 0.005
_HEARTBEAT = 0.1


class Command(NamedTuple):
    """What the learner sends.

    Attributes:
        number: of the command, from 0; commands may arrive in another order.
        message: a pickled command for the worker; None for none.
        released: number of rows of this actor that the loop has consumed, minus the rows of the predecessor that
            the loop has not consumed.
        limit: the number of rows at which a worker waits that collects all the time.
        stop: whether the worker ends the phase.
        actions: of the worker's lanes, if the learner chooses the actions.
    """

    number: int
    message: bytes | None
    released: int
    limit: int
    stop: bool
    actions: Array | None


class Reply(NamedTuple):
    """What a worker returns.

    Attributes:
        pid: the number of the actor's process.
        messages: the worker's answers, in order.
        rows: the fields of the rows that the worker has published since the last reply; None for no rows.
        shared: if the learner chooses the actions, what the learner needs for the next round: arrays of the
            worker's lanes.
        fresh: the lanes, counted from the worker's first, that the worker has reset on request.
        inside: seconds since which the worker is inside the environment; 0 outside.
    """

    pid: int
    messages: list[bytes]
    rows: dict[str, Array] | None
    shared: dict[str, Array]
    fresh: list[int]
    inside: float


class _Mailbox:
    """The worker's side of the connection, which receives pickled commands and sends pickled answers."""

    def __init__(self) -> None:
        self.commands: SimpleQueue[bytes] = SimpleQueue()
        self.answers: SimpleQueue[bytes] = SimpleQueue()

    def recv(self) -> Any:
        """Wait for a command and return the command."""
        return pickle.loads(self.commands.get())

    def send(self, message: Any) -> None:
        """Send a message."""
        self.answers.put(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, message: bytes) -> None:
        """Send `WAKE`."""
        self.answers.put(message)


class RayActor:
    """An actor with one worker. Each method runs in a separate thread.

    Args:
        index: the worker's number.
        lanes: the worker's lanes, the first and the one behind the last.
        specs: the arrays that the worker shares with the learner, without the arrays of other workers.
        shapes: shape and dtype of the weights; [] if the learner chooses the actions.
    """

    def __init__(self, index: int, lanes: tuple[int, int], specs: Sequence[ArraySpec], shapes: Shapes) -> None:
        self._arrays = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs}
        self._own = slice(*lanes)
        self._ring = ring_of(self._arrays, index)
        self._control = self._arrays[f"control/{index}"]
        self._weights = SharedWeights(self._arrays["weights"], self._arrays["version"], shapes) if shapes else None
        self._shared = [name for name in self._arrays if name == "encoded" or name.startswith("current/")]
        self._mailbox = _Mailbox()
        self._lock = Lock()
        self._expected = 0
        self._early: dict[int, tuple[Command, Any]] = {}  # commands that came before their predecessors
        self._returned = 0  # the number of rows
        self._replied = 0.0  # the time of the last reply

    @ray.method(concurrency_group="work")
    def work(self, job: bytes) -> None:
        """Run the worker until the learner closes the worker."""
        serve(job, lambda _: self._arrays, self._mailbox)

    @ray.method(concurrency_group="commands")
    def command(self, command: Command, weights: tuple[Sequence[Array], int] | None) -> None:
        """Receive a command.

        Args:
            command: what to do.
            weights: new weights and the number of gradient updates; None if the weights are the same as before.
        """
        with self._lock:
            # Ray may deliver commands in another order, so an early one waits for the commands before.
            self._early[command.number] = command, weights
            while self._expected in self._early:
                self._execute(*self._early.pop(self._expected))
                self._expected += 1

    def _execute(self, command: Command, weights: tuple[Sequence[Array], int] | None) -> None:
        """Publish weights, limits and actions to the worker, and then pass on the message; called in order."""
        if weights is not None:
            assert self._weights is not None
            self._weights.publish(*weights)
        control = self._control
        self._ring.set_released(command.released)
        control[STOP] = command.stop
        control[LIMIT] = command.limit  # after the weights: they are at least as new
        if command.actions is not None:
            self._arrays["actions"][self._own] = command.actions
        if command.message is not None:
            control[SENT] += 1
            self._mailbox.commands.put(command.message)

    @ray.method(concurrency_group="replies")
    def reply(self) -> Reply:
        """Wait until there is something to return, or for a moment, and return the reply.

        Each row and each flag of `fresh` is returned once.
        """
        messages = self._wait()
        count = self._ring.published - self._returned  # after the messages: rows before a message come with it
        rows = self._ring.copy(self._returned, count) if count else None
        self._returned += count
        fresh: list[int] = []
        if self._weights is None:
            flags = self._arrays["fresh"][self._own]
            fresh = np.flatnonzero(flags).tolist()
            flags[fresh] = False
        shared = {name: self._arrays[name][self._own].copy() for name in self._shared}
        entered = int(self._control[ENTERED])
        self._replied = time.monotonic()
        inside = (time.monotonic_ns() - entered) / 1e9 if entered else 0.0
        return Reply(os.getpid(), messages, rows, shared, fresh, inside)

    def _wait(self) -> list[bytes]:
        """Wait, and return the messages; rows are returned at most every `_PAUSE` seconds."""
        answers = self._mailbox.answers
        ring = self._ring
        deadline = time.monotonic() + _HEARTBEAT
        earliest = self._replied + _PAUSE
        messages: list[bytes] = []
        while True:
            while not answers.empty():
                message = answers.get()
                if message != WAKE:
                    messages.append(message)
            self._control[WANTED] = self._returned + 1  # the worker sends `WAKE` with the next row
            has_rows = ring.published > self._returned
            now = time.monotonic()
            is_reset = self._weights is None and bool(self._arrays["fresh"][self._own].any())
            if messages or is_reset or now >= deadline or (has_rows and now >= earliest):
                return messages
            try:
                message = answers.get(timeout=max((earliest if has_rows else deadline) - now, 0.0))
            except Empty:
                continue
            if message != WAKE:
                messages.append(message)
