"""Starts workers as actors of Ray, and passes on what the actors and the learner send to each other.

For the learner, a worker on a cluster looks like a process of this machine, with a pipe, and with a ring and a control
array in memory. A thread, the relay, writes what the actors return into this memory, and sends what the learner writes
there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import threading
import time
import warnings
from collections import deque
from typing import Any

import ray

from noterl.collect.ray.actor import Command, RayActor, Reply
from noterl.collect.ray.settings import RayWorkers
from noterl.collect.workers.pickling import dumps
from noterl.collect.workers.process import WorkerHandle
from noterl.collect.workers.shared_memory import Shapes, SharedMemory, SharedWeights
from noterl.collect.workers.worker import LIMIT, STOP, WAKE, Job, ring_of

# Seconds between two looks at what the learner has written.
_LOOK_SECONDS = 0.005

# Seconds after which a warning says that the cluster has not started a worker.
_SLOW_START = 15.0

# An actor replies several times a second. Seconds after which one that does not is taken to be inside its environment.
_SILENCE = 1.0

# Each method of an actor has a thread.
_THREADS = {"work": 1, "commands": 1, "replies": 1}

# Arrays that each worker has for itself; a number follows.
_OWN_ARRAYS = ("ring", "counters", "control")


def _is_needed(name: str, index: int) -> bool:
    """Return whether a worker needs an array, because the array belongs to this worker or to all workers."""
    group, _, suffix = name.partition("/")
    return group not in _OWN_ARRAYS or suffix.split("/")[0] == str(index)


class _LearnerPipe:
    """The learner's side of the connection with a worker: messages, and a descriptor that can be waited for."""

    def __init__(self) -> None:
        self._messages: deque[bytes | None] = deque()
        self._lock = threading.Lock()
        # Holds a byte while there are messages. It never fills up, so `put` never waits for the learner.
        self._readable, self._writable = os.pipe()

    def fileno(self) -> int:
        """Return what becomes readable when there is a message."""
        return self._readable

    def put(self, message: bytes | None) -> None:
        """Add a message; None if no other follows."""
        with self._lock:
            if not self._messages:
                os.write(self._writable, b"\0")
            elif message == WAKE:
                return  # the learner has yet to handle another message
            self._messages.append(message)

    def recv_bytes(self) -> bytes:
        """Return the next message; there must be one.

        Raises:
            EOFError: if no other follows.
        """
        with self._lock:
            message = self._messages.popleft()
            if not self._messages:
                os.read(self._readable, 1)
        if message is None:
            raise EOFError
        return message

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._readable)
        os.close(self._writable)


class _Weights:
    """The newest weights of the learner in Ray's store, from which each machine receives the weights once.

    Args:
        memory: holds the block to which the learner publishes weights.
        shapes: shape and dtype of each.
    """

    def __init__(self, memory: SharedMemory, shapes: Shapes) -> None:
        self._block = SharedWeights(memory.arrays["weights"], memory.arrays["version"], shapes)
        self._lock = threading.Lock()
        # Of the weights in the store.
        self._version = 0
        self._reference: Any = None

    def newest(self) -> tuple[int, Any]:
        """Return the number of the newest publication, 0 before the first, and the reference of the weights.

        New weights are put into Ray's store first.
        """
        block = self._block
        with self._lock:
            while not block.read():  # the learner is publishing
                time.sleep(0)
            if block.version != self._version:
                self._reference = ray.put(([weight.copy() for weight in block.weights], block.updates))
                self._version = block.version
            return self._version, self._reference


class RayWorker(WorkerHandle):
    """A worker in an actor, and what was sent to the actor.

    Args:
        job: what the worker does.
        memory: of the learner.
        weights: the newest weights; None if the learner chooses the actions.
        options: of the actor.

    Attributes:
        actor: the handle of the actor.
        pid: the number of the actor's process; None until the actor has started.
    """

    def __init__(self, job: Job, memory: SharedMemory, weights: _Weights | None, options: dict[str, Any]) -> None:
        index = job.index
        super().__init__(job, memory.arrays[f"control/{index}"])
        pickled = dumps(job)
        self._arrays = memory.arrays
        self._weights = weights
        self._own = slice(job.first, job.first + job.count)
        self._ring = ring_of(memory.arrays, index)
        self._base = self._ring.published  # the rows of its predecessors
        self._lock = threading.Lock()  # held while the learner or the relay changes what follows
        self._number = 0  # of the next command
        self._sent = (0, 0, False)  # the last limits: released rows, `LIMIT` and `STOP`
        self._version = 0  # of the last weights that were sent
        self._is_over = False
        self._reason = ""
        self.pid: int | None = None
        self._launched = self._replied = time.monotonic()
        self._entered: float | None = None  # when it has entered its environment; None if it is not inside
        self._inside = 0.0
        self._is_reported: bool | None = None  # as slow to start: False with a warning, True with an error
        specs = [spec for spec in job.specs if _is_needed(spec.name, index)]
        self._needs = f"{options['num_cpus']:g} CPUs and {options['resources']}"
        lanes = self._own.start, self._own.stop
        self.pipe: _LearnerPipe = _LearnerPipe()
        try:
            actor = ray.remote(concurrency_groups=_THREADS)(RayActor)
            self.actor: Any = actor.options(**options).remote(index, lanes, specs, job.shapes)
            self._work = self.actor.work.remote(pickled)
            self._reply = self.actor.reply.remote()  # the relay waits for its result, and calls it again
        except BaseException:
            self.pipe.close()
            raise
        self._commands: list[Any] = []  # calls whose results the relay has not seen

    @property
    def is_over(self) -> bool:
        """Whether the worker was killed, or has ended and was reported."""
        return self._is_over or bool(self._reason)

    def seconds_inside(self) -> float:
        """Return for how many seconds the worker had been inside the environment when the relay last looked.

        The learner does not add the time since then: if the learner has held up the relay, the worker may have left the
        environment meanwhile.
        """
        return 0.0 if self._is_over else self._inside

    # Calls of the learner, and of the relay

    def send(self, message: tuple[Any, ...] | None) -> None:
        """Send a command with the newest weights and limits, without waiting for the result.

        Args:
            message: the command; None to send weights and limits only if these are new, and one such call at
                a time.
        """
        with self._lock:
            if self._is_over or (message is None and self._commands):
                return
            # Before the weights, so that they are at least as new as the limit.
            released = self._ring.released - self._base
            limit = int(self._control[LIMIT]) - self._base
            limits = released, limit, bool(self._control[STOP])
            version, reference = (0, None) if self._weights is None else self._weights.newest()
            if message is None and limits == self._sent and version == self._version:
                return
            actions = None
            if self._weights is None and message is not None:
                actions = self._arrays["actions"][self._own].copy()
            pickled = None if message is None else pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
            command = Command(self._number, pickled, *limits, actions)
            weights = reference if version != self._version else None
            self._commands.append(self.actor.command.remote(command, weights))
            self._number += 1
            self._sent = limits
            self._version = version

    # Calls of the relay

    def calls(self) -> list[Any]:
        """Return the references of the calls whose results the relay waits for."""
        with self._lock:
            return [] if self.is_over else [self._reply, *self._commands]

    def finish(self, call: Any) -> None:
        """Use the result of a call, which has arrived."""
        try:
            result = ray.get(call)
        except ray.exceptions.RayError as error:
            self.fail(f"has lost its actor: {_in_one_line(error)}")
            return
        with self._lock:
            if self.is_over:
                return
            if isinstance(result, Reply):
                self._receive(result)
                self._reply = self.actor.reply.remote()
            else:
                self._commands.remove(call)

    def _receive(self, reply: Reply) -> None:
        """Write what the actor has returned into the learner's memory."""
        self.pid = reply.pid
        self._replied = time.monotonic()
        self._entered = self._replied - reply.inside if reply.inside else None
        for name, values in reply.shared.items():
            self._arrays[name][self._own] = values
        if reply.fresh:
            self._arrays["fresh"][[self._own.start + lane for lane in reply.fresh]] = True
        if reply.rows is not None:
            self._ring.append(reply.rows)
        for message in reply.messages:
            self.pipe.put(message)
        if reply.rows is not None or reply.fresh:
            self.pipe.put(WAKE)

    def fail(self, reason: str) -> None:
        """Report that the actor has ended."""
        with self._lock:
            if not self.is_over:
                self._reason = reason
                self.pipe.put(None)

    def look(self, start_timeout: float) -> None:
        """Record how long the worker has been inside the environment, and report a worker that was not started."""
        now = time.monotonic()
        if self.pid is None:
            self._look_at_start(now - self._launched, start_timeout)
            return
        # An environment in C code may hold the interpreter of the actor, which then returns no reply.
        silent_since = self._replied if now - self._replied > _SILENCE else None
        since = silent_since if self._entered is None else self._entered
        self._inside = 0.0 if since is None else now - since

    def _look_at_start(self, waited: float, timeout: float) -> None:
        """Report a worker that the cluster has not started after `waited` seconds."""
        is_late = waited >= timeout
        # A late worker is reported twice at most: with a warning, and after the timeout with an error.
        if self._is_reported is is_late or not (is_late or waited >= _SLOW_START):
            return
        self._is_reported = is_late
        text = (
            f"the cluster has not started it after {waited:.0f} seconds; it needs {self._needs}, and the cluster has "
            f"{ray.available_resources().get('CPU', 0):g} free of {ray.cluster_resources().get('CPU', 0):g} CPUs"
        )
        message = ("error", f"TimeoutError: {text}", "") if is_late else ("warning", "RuntimeWarning", text)
        with self._lock:
            if not self._is_over:
                self.pipe.put(pickle.dumps(message))

    # The end

    def exit_status(self) -> str:
        """Describe how the actor has ended."""
        return self._reason

    def has_ended(self) -> bool:
        """Return whether the actor has closed the environments, or has failed."""
        if self._is_over or not ray.is_initialized():
            return True
        try:
            return bool(ray.wait([self._work], timeout=0)[0])
        except ray.exceptions.RayError:
            return True

    def close_after_end(self) -> None:
        """Do nothing: the relay notices the end."""

    def kill(self) -> None:
        """Kill the actor; nothing that the actor has not yet returned is used."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self.pipe.close()
        if ray.is_initialized():  # otherwise the actors have ended with Ray
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self.actor)


class RayLauncher:
    """Starts workers on a Ray cluster, and runs the relay.

    Args:
        settings: of the workers.
        memory: shared with the relay.
        shapes: shape and dtype of the weights; [] if the learner chooses the actions.
    """

    def __init__(self, settings: RayWorkers, memory: SharedMemory, shapes: Shapes) -> None:
        _connection.open()
        self._memory = memory
        self._timeout = settings.start_timeout
        self._weights = _Weights(memory, shapes) if shapes else None
        self._options = {
            "num_cpus": settings.num_cpus,
            "resources": dict(settings.resources or {}),
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        # The learner adds workers, and the relay removes those that are over; both are atomic operations of a list.
        self._workers: list[RayWorker] = []
        self._error: Exception | None = None  # of the relay
        self._ends = threading.Event()
        self._relay = threading.Thread(target=self._run, name="noterl-ray-relay", daemon=True)
        self._relay.start()

    def launch(self, job: Job) -> WorkerHandle:
        """Request an actor from the cluster.

        Raises:
            ValueError: if the job cannot be sent to another process.
            RuntimeError: if the connection to Ray was lost.
        """
        self._check()
        worker = RayWorker(job, self._memory, self._weights, self._options)
        self._workers.append(worker)
        try:
            self._check()  # the relay may have ended before the worker was in its list
        except RuntimeError:
            worker.kill()
            raise
        return worker

    def _check(self) -> None:
        if self._error is not None:
            raise RuntimeError("workers: the connection to Ray was lost") from self._error

    def close(self) -> None:
        """End the relay, and Ray if Ray was started here and no other `fit` uses Ray."""
        self._ends.set()
        self._relay.join()
        _connection.close()

    def _run(self) -> None:
        """Pass on results and commands until `close`; this is the thread of the relay."""
        try:
            while not self._ends.is_set():
                self._pass_on()
        except Exception as error:  # the learner must not wait for ever
            self._error = error
            for worker in tuple(self._workers):
                worker.fail(f"was lost with the connection to Ray: {_in_one_line(error)}")

    def _pass_on(self) -> None:
        """Give workers the results that have arrived, or wait a moment for one; send each worker the newest weights."""
        workers = tuple(self._workers)
        owners = {call: worker for worker in workers for call in worker.calls()}
        if not owners:
            self._ends.wait(_LOOK_SECONDS)
        else:
            # The first call waits for one result, the second one adds the others that have arrived.
            ready, others = ray.wait(list(owners), timeout=_LOOK_SECONDS)
            if ready and others:
                ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
            for call in ready:
                owners[call].finish(call)
        for worker in workers:
            if worker.is_over:
                self._workers.remove(worker)
            else:
                worker.send(None)
                worker.look(self._timeout)


class _Connection:
    """The connection of this process to Ray: the first `fit` that needs Ray starts Ray, and the last one ends Ray."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._is_own = False

    def open(self) -> None:
        """Connect to Ray, or start Ray, unless this process is connected; `close` must follow."""
        with self._lock:
            if not ray.is_initialized():
                _start_ray()
                self._is_own = True
            self._users += 1

    def close(self) -> None:
        """End Ray if Ray was started by `open`, and no other user is left."""
        with self._lock:
            self._users -= 1
            if self._is_own and not self._users:
                self._is_own = False
                ray.shutdown()


_connection = _Connection()


def _start_ray() -> None:
    """Connect to a cluster, or start one; the program's reaction to SIGTERM does not change."""
    handler = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        # Ray's processes are started by forks that execute another program at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        ray.init(include_dashboard=False, logging_level=logging.WARNING)
    if threading.current_thread() is threading.main_thread():  # elsewhere, Ray leaves it as it is
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
