"""Starts workers as actors of Ray, and passes on what they and the learner send to each other.

For the learner, a worker on a cluster looks like a process of this machine: it has a pipe, and a ring and a control
array in memory. A thread, the relay, writes what the actors return into them, and sends what the learner writes there.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import ray

from noterl.collect.process import WorkerHandle
from noterl.collect.ray_actor import Command, RayActor, Reply
from noterl.collect.sending import dumps
from noterl.collect.shared_memory import Shapes, SharedMemory, SharedWeights
from noterl.collect.worker import ENTERED, LIMIT, STOP, WAKE, Job, ring_of

if TYPE_CHECKING:
    from noterl.collect.ray_workers import RayWorkers

# Seconds between two looks at what the learner has written.
_LOOK_SECONDS = 0.005

# Seconds after which a warning says that the cluster has not started a worker.
_SLOW_START = 15.0

# Each method of an actor has a thread.
_THREADS = {"work": 1, "commands": 1, "replies": 1}

# Arrays that each worker has for itself; a number follows.
_OWN_ARRAYS = ("ring", "counters", "control")


def _is_needed(name: str, index: int) -> bool:
    """Return whether a worker needs an array, because it is its own or that of all workers."""
    kind, _, rest = name.partition("/")
    return kind not in _OWN_ARRAYS or rest.split("/")[0] == str(index)


class _LearnerPipe:
    """The learner's side of the connection with a worker: messages, and a descriptor that can be waited for."""

    def __init__(self, worker: RayWorker) -> None:
        self._worker = worker
        self._messages: deque[bytes | None] = deque()
        self._readable, self._writable = os.pipe()

    def fileno(self) -> int:
        """Return what becomes readable when there is a message."""
        return self._readable

    def put(self, message: bytes | None) -> None:
        """Add a message; None if no other follows."""
        self._messages.append(message)
        os.write(self._writable, b"\0")

    def recv_bytes(self) -> bytes:
        """Return the next message.

        Raises:
            EOFError: if no other follows.
        """
        os.read(self._readable, 1)
        message = self._messages.popleft()
        if message is None:
            raise EOFError
        return message

    def send(self, message: Any) -> None:
        """Send a command to the actor, without waiting for it."""
        self._worker.send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._readable)
        os.close(self._writable)


class _Weights:
    """The newest weights of the learner in Ray's store, from which each machine receives them once.

    Args:
        memory: holds the block to which the learner publishes them.
        shapes: shape and dtype of each.
    """

    def __init__(self, memory: SharedMemory, shapes: Shapes) -> None:
        self._block = SharedWeights(memory.arrays["weights"], memory.arrays["version"], shapes)
        self._lock, self._reference = threading.Lock(), None

    def newest(self) -> tuple[int, Any]:
        """Return the number of the newest publication, 0 before the first, and the reference of its weights."""
        block = self._block
        with self._lock:
            before = block.version
            while not block.read():
                time.sleep(0)
            if block.version != before and block.version > 0:
                self._reference = ray.put(([weight.copy() for weight in block.weights], block.updates))
            return block.version, self._reference


class RayWorker(WorkerHandle):
    """A worker in an actor, and what was sent to it.

    Args:
        job: what it does.
        memory: of the learner.
        weights: the newest weights; None if the learner chooses the actions.
        options: of the actor.

    Attributes:
        actor: the handle of the actor.
        pid: the number of its process; None until it has started.
        launched: when it was launched, in seconds of `time.monotonic`.
    """

    pipe: _LearnerPipe

    def __init__(self, job: Job, memory: SharedMemory, weights: _Weights | None, options: dict[str, Any]) -> None:
        super().__init__(job)
        pickled = dumps(job)
        index = job.index
        self._arrays, self._weights = memory.arrays, weights
        self._own = slice(job.first, job.first + job.count)
        self._ring, self._control = ring_of(memory.arrays, index), memory.arrays[f"control/{index}"]
        self._base = self._ring.published  # the rows of its predecessors
        self._lock = threading.Lock()  # held while the learner or the relay changes what follows
        self._number, self._sent, self._version = 0, (0, 0, False), 0
        self._is_over, self._reason = False, ""
        self.pid: int | None = None
        self.launched, self._warned = time.monotonic(), False
        specs = [spec for spec in job.specs if _is_needed(spec.name, index)]
        shapes = [] if job.acting is None else list(job.acting.shapes)
        self._needs = f"{options['num_cpus']:g} CPUs and {options['resources']}"
        lanes = self._own.start, self._own.stop
        actor = ray.remote(concurrency_groups=_THREADS)(RayActor)
        self.actor = actor.options(**options).remote(index, lanes, specs, shapes)
        self._work = self.actor.work.remote(pickled)
        self.pipe = _LearnerPipe(self)

    @property
    def is_over(self) -> bool:
        """Whether the worker was killed."""
        return self._is_over

    def send(self, message: bytes | None) -> None:
        """Send a command with the newest weights and limits; nothing if there is neither a command nor news."""
        with self._lock:
            if self._is_over:
                return
            # Before the weights, so that they are at least as new as the limit.
            released, limit = self._ring.released - self._base, int(self._control[LIMIT]) - self._base
            limits = released, limit, bool(self._control[STOP])
            version, reference = (0, None) if self._weights is None else self._weights.newest()
            if message is None and limits == self._sent and version == self._version:
                return
            actions = None
            if self._weights is None and message is not None:
                actions = self._arrays["actions"][self._own].copy()
            command = Command(self._number, message, *limits, actions)
            self.actor.command.remote(command, reference if version != self._version else None)
            self._number, self._sent, self._version = self._number + 1, limits, version

    def receive(self, reply: Reply) -> None:
        """Write what the actor has returned into the learner's memory."""
        with self._lock:
            if self._is_over:
                return
            self.pid = reply.pid
            for name, values in reply.shared.items():
                self._arrays[name][self._own] = values
            if reply.fresh:
                self._arrays["fresh"][[self._own.start + lane for lane in reply.fresh]] = True
            if reply.rows is not None:
                self._ring.append(reply.rows)
            self._control[ENTERED] = time.monotonic_ns() - int(reply.inside * 1e9) if reply.inside else 0
            for message in reply.messages:
                self.pipe.put(message)
            if reply.rows is not None or reply.fresh:
                self.pipe.put(WAKE)

    def fail(self, reason: str) -> None:
        """Report that the actor has ended."""
        with self._lock:
            if not self._is_over:
                self._reason = reason
                self.pipe.put(None)

    def look_at_start(self, timeout: float) -> None:
        """Report a worker that the cluster has not started."""
        waited = time.monotonic() - self.launched
        if self.pid is not None or waited < (timeout if self._warned else _SLOW_START):
            return
        text = (
            f"the cluster has not started it after {waited:.0f} seconds; it needs {self._needs}, and the cluster has "
            f"{ray.available_resources().get('CPU', 0):g} free of {ray.cluster_resources().get('CPU', 0):g} CPUs"
        )
        with self._lock:
            if self._is_over:
                return
            if waited > timeout:
                self.pipe.put(pickle.dumps(("error", f"TimeoutError: {text}", "")))
            else:
                self._warned = True
                self.pipe.put(pickle.dumps(("warning", "RuntimeWarning", text)))

    def exit_status(self) -> str:
        """Describe how the actor has ended."""
        return self._reason

    def end(self, seconds: float) -> None:
        """Wait until the actor has closed its environments, and kill it."""
        ray.wait([self._work], timeout=max(seconds, 0.0))
        self.kill()

    def kill(self) -> None:
        """Kill the actor; nothing that it has not yet returned is used."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self.pipe.close()
        if ray.is_initialized():  # otherwise the actors have ended with Ray
            ray.kill(self.actor)


class RayLauncher:
    """Starts workers on a Ray cluster, and runs the relay.

    Args:
        settings: of the workers.
        memory: shared with the relay.
        shapes: shape and dtype of the weights; [] if the learner chooses the actions.
    """

    def __init__(self, settings: RayWorkers, memory: SharedMemory, shapes: Shapes) -> None:
        self._starts_ray = not ray.is_initialized()
        if self._starts_ray:
            _start_ray()
        self._memory, self._timeout = memory, settings.start_timeout
        self._weights = _Weights(memory, shapes) if shapes else None
        self._options = {
            "num_cpus": settings.num_cpus,
            "resources": dict(settings.resources or {}),
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        self._launched: deque[RayWorker] = deque()  # until the relay has seen them
        self._error: Exception | None = None  # of the relay
        self._ends = threading.Event()
        self._relay = threading.Thread(target=self._run, name="noterl-ray-relay", daemon=True)
        self._relay.start()

    def launch(self, job: Job) -> WorkerHandle:
        """Ask the cluster for an actor.

        Raises:
            ValueError: if the job cannot be sent to another process.
            RuntimeError: if the connection to Ray was lost.
        """
        if self._error is not None:
            raise RuntimeError("workers: the connection to Ray was lost") from self._error
        worker = RayWorker(job, self._memory, self._weights, self._options)
        self._launched.append(worker)
        return worker

    def close(self) -> None:
        """End the relay, and Ray if it was started here."""
        self._ends.set()
        self._relay.join()
        if self._starts_ray:
            ray.shutdown()

    def _run(self) -> None:
        asked: dict[Any, RayWorker] = {}  # by the reference of the reply
        try:
            while not self._ends.is_set():
                self._pass_on(asked)
        except Exception as error:  # the learner must not wait for ever
            self._error = error
            for worker in (*asked.values(), *self._launched):
                worker.fail(f"was lost with the connection to Ray: {_in_one_line(error)}")

    def _pass_on(self, asked: dict[Any, RayWorker]) -> None:
        """Pass on the replies that have arrived, or wait a moment for one, and then what the learner has written."""
        while self._launched:
            worker = self._launched.popleft()
            asked[worker.actor.reply.remote()] = worker
        if not asked:
            self._ends.wait(_LOOK_SECONDS)
            return
        ready, others = ray.wait(list(asked), timeout=_LOOK_SECONDS)
        if ready and others:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        for reference in ready:
            worker = asked.pop(reference)
            try:
                worker.receive(ray.get(reference))
            except ray.exceptions.RayError as error:
                worker.fail(f"has lost its actor: {_in_one_line(error)}")
                continue
            if not worker.is_over:
                asked[worker.actor.reply.remote()] = worker
        for worker in asked.values():
            worker.send(None)
            worker.look_at_start(self._timeout)


def _start_ray() -> None:
    """Connect to a cluster, or start one; the program's reaction to SIGTERM stays as it is."""
    handler = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        # Ray's processes are started by forks that execute another program at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        ray.init(include_dashboard=False, logging_level=logging.WARNING)
    if threading.current_thread() is threading.main_thread():  # elsewhere, Ray leaves it as it is
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
