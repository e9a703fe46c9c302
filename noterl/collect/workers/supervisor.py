"""`Supervisor`: the worker processes of a `fit`, and what happens when a process fails."""

from __future__ import annotations

import builtins
import pickle
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from noterl.collect.env_calls import BadCallError, EnvCall
from noterl.collect.workers.pickling import dumps
from noterl.collect.workers.platforms import Pipes
from noterl.collect.workers.process import Inbox, Launcher, WorkerHandle
from noterl.collect.workers.settings import WorkerError, WorkerSettings
from noterl.collect.workers.worker import SENT, STOP, WAKE, Job

# The learner sleeps until a worker wakes it, but at most this long: then it looks for hung processes.
_WAIT_SECONDS = 0.01

# Seconds between two looks for processes that have ended, but whose pipe is open.
_LOOK_SECONDS = 0.5

# After an error or Ctrl-C: seconds in which workers return the state of their lanes, and in which they end.
_STATE_SECONDS = 2.0
_HURRIED_END_SECONDS = 1.0

# Otherwise: seconds in which they close their environments, which may have to write a video or to end a simulator.
_END_SECONDS = 30.0
_POLL_SECONDS = 0.002


class Supervisor:
    """Starts worker processes, exchanges messages with the workers, and replaces workers that fail.

    Args:
        settings: what to do if a process fails.
        own: the lanes of each worker, for messages.
        launcher: starts the processes.
        control: the control array of each worker; see `noterl.collect.workers.worker`.

    Attributes:
        processes: the processes by the numbers of the workers.
        check: called while this process waits; raises if the user has interrupted the training.
        successor_job: returns the job of the process that replaces a worker's process.
        on_replaced: called with the number of a worker whose process was replaced.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        own: Sequence[slice],
        launcher: Launcher,
        control: Sequence[np.ndarray[Any, Any]],
    ) -> None:
        self._settings = settings
        self._own = own
        self._launcher = launcher
        self._control = control
        self.processes: list[WorkerHandle] = []
        self.check: Callable[[], None] = lambda: None
        self.successor_job: Callable[[int], Job]
        self.on_replaced: Callable[[int], None]
        self._pipes = Pipes()
        self._failures = 0
        self._next_look = 0.0  # time of the next look for ended processes
        self._failed: set[int] = set()  # workers whose process has ended and is not replaced
        self._wants_states = self._is_closing = False
        self._call: bytes | None = None  # the pickled call that waits for answers
        self._calls = 0  # the number of the last call

    def start(self, jobs: Sequence[Job]) -> list[list[bool]]:
        """Start a process for each job; return which lanes of each have an episode in progress.

        Raises:
            ValueError: if a job cannot be sent to another process.
            WorkerError: if a worker raises an exception.
        """
        for job in jobs:
            self._launch(job)
        self.wait_until(lambda: all(process.running is not None for process in self.processes))
        return [process.running or [] for process in self.processes]

    def _launch(self, job: Job) -> None:
        """Start a process in place of the worker's process, if there is one."""
        process = self._launcher.launch(job)
        self.processes[job.index : job.index + 1] = [process]
        self._pipes.add(process.pipe, process)

    def close(self) -> None:
        """Close the environments and end the processes; processes that take too long are killed, with a warning."""
        try:
            for process, control in zip(self.processes, self._control, strict=True):
                control[STOP] = True
                process.ask_to_close()
            seconds = _HURRIED_END_SECONDS if self._is_closing else _END_SECONDS
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not all(process.has_ended() for process in self.processes):
                if not self._is_closing:
                    self.check()
                time.sleep(_POLL_SECONDS)
            for index, process in enumerate(self.processes):
                if not process.has_ended() and not self._is_closing:
                    late = f"did not close its environments within {seconds:g} seconds; its process is killed"
                    warnings.warn(f"{self._describe(index)} {late}", RuntimeWarning, stacklevel=2)
            self._is_closing = True  # an error or an end of a worker is no failure any more
            # The warnings that workers have sent while the environments were closed.
            while pipes := self._pipes.wait(0.0):
                for pipe in pipes:
                    self._handle_message(self._pipes.owners[pipe])
        finally:
            self.kill()

    def _warn(self, index: int, category: str, message: str) -> None:
        """Show a warning of a worker."""
        warnings.warn(f"{self._describe(index)}: {message}", getattr(builtins, category, UserWarning), stacklevel=3)

    def kill(self) -> None:
        """End the processes at once."""
        try:
            for process in self.processes:
                process.kill()
        finally:
            self._launcher.close()

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Handle messages until a condition holds.

        Raises:
            WorkerError: if a worker raises an exception, or fails and is not replaced.
        """
        while not condition():
            self.check()
            self.handle_messages()

    def send(self, index: int, *message: Any) -> None:
        """Send a command to a worker, unless the worker has failed; raises the same errors as `wait_until`."""
        process = self.processes[index]
        if index in self._failed:
            return
        self._control[index][SENT] += 1
        try:
            process.send(message)
        except OSError:
            # Handle what it has sent before, such as an exception, until it is replaced or an error is raised.
            while process is self.processes[index] and index not in self._failed:
                self._handle_message(process)

    def states(self, inboxes: Sequence[Inbox], *, hurry: bool) -> list[dict[str, Any] | None]:
        """Return the state of each worker, and copy all rows to the inboxes; None for a worker that has failed.

        If `hurry` is set, failures of workers are ignored from now on, and only `close` may follow.

        Args:
            inboxes: of the workers.
            hurry: whether workers end the phase early, and workers that do not answer in time are lost.
        """
        self._is_closing = hurry
        for process, control in zip(self.processes, self._control, strict=True):
            process.state = None
            control[STOP] = hurry
        self._wants_states = True
        patient_until = time.monotonic() + _STATE_SECONDS
        for index in range(len(self.processes)):
            self.send(index, "send_state")
        while (not hurry or time.monotonic() < patient_until) and any(
            process.state is None and index not in self._failed for index, process in enumerate(self.processes)
        ):
            for inbox in inboxes:  # a worker whose ring is full cannot end its phase
                inbox.keep()
            self.handle_messages()
            if not hurry and time.monotonic() > patient_until:
                self.check()  # an environment may hang
        self._wants_states = False
        for inbox in inboxes:
            inbox.keep()
        return [process.state for process in self.processes]

    def call(self, call: EnvCall, inboxes: Sequence[Inbox]) -> list[Any]:
        """Call a method of every environment after the current phase; return the results of all lanes in order.

        A worker receives the call after the answer to a question, and answers after the phase. Without the question, a
        call with large arguments would fill the pipe of a worker that waits for this process to empty the ring.

        Args:
            call: the method.
            inboxes: of the workers; all rows are copied to the inboxes.

        Raises:
            BadCallError: if the environments do not have the method.
            ValueError: if the arguments cannot be sent to another process.
            WorkerError: if the method raises, or a worker has failed and is not replaced.
        """
        self._call = dumps(call, f"{call}: its arguments")
        self._calls += 1
        try:
            for index in range(len(self.processes)):
                self.send(index, "await_call", self._calls)
            while any(process.answer[0] != self._calls for process in self.processes):
                for index in self._failed:  # an earlier error has ended it, so it never answers
                    raise WorkerError(index, f"{call}: {self._describe(index)} has failed")
                for inbox in inboxes:  # a worker whose ring is full cannot end its phase
                    inbox.keep()
                self.check()
                self.handle_messages()
        finally:
            self._call = None
        answers = [process.answer[1] for process in self.processes]
        for index, answer in enumerate(answers):
            if isinstance(answer, BadCallError):
                raise answer
            if isinstance(answer, tuple):
                summary, text = answer
                raise WorkerError(index, f"{self._describe(index)} raised {summary}\n\nIn the worker:\n{text}")
        return [result for answer in answers for result in answer]

    def handle_messages(self, seconds: float = _WAIT_SECONDS) -> None:
        """Wait for messages of workers for a moment and handle the messages; raises the same errors as `wait_until`."""
        for pipe in self._pipes.wait(seconds):
            if pipe in self._pipes.owners:  # otherwise it has just failed
                self._handle_message(self._pipes.owners[pipe])
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            for process in self.processes:
                process.close_after_end()
        timeout = self._settings.step_timeout
        if timeout is None:
            return
        for index, process in enumerate(self.processes):
            if process.seconds_inside() > timeout:
                self._fail(index, f"was in its environment for more than step_timeout={timeout:g} seconds")

    def _handle_message(self, process: WorkerHandle) -> None:
        """Receive and handle one message; raise a WorkerError for an exception of the worker's environments."""
        index = process.job.index
        try:
            message = process.pipe.recv_bytes()
        except (EOFError, OSError):
            self._fail(index, process.exit_status())
            return
        if message == WAKE:
            return
        name, *values = pickle.loads(message)
        if name == "ready":
            (process.running,) = values
        elif name == "state":
            (process.state,) = values
        elif name == "awaits_call":
            if self._call is not None and values == [self._calls]:  # otherwise the call was interrupted
                self.send(index, "call", self._calls, self._call)
        elif name == "called":
            number, answer = values
            process.answer = number, pickle.loads(answer)
        elif name == "warning":
            self._warn(index, *values)
        else:
            summary, text = values
            self._discard(process)
            if not self._is_closing:
                raise WorkerError(index, f"{self._describe(index)} raised {summary}\n\nIn the worker:\n{text}")

    def _fail(self, index: int, reason: str) -> None:
        """Replace a worker that has died or hangs, or raise; the published rounds are kept."""
        process = self.processes[index]
        settings = self._settings
        self._discard(process)
        if self._is_closing:
            return
        self._failures += 1
        if settings.on_failure == "raise" or self._failures > settings.restarts:
            used = f" (after {settings.restarts} restarts)" if settings.on_failure == "restart" else ""
            raise WorkerError(index, f"{self._describe(index)} {reason}{used}")
        warnings.warn(
            f"{self._describe(index)} {reason}; it is replaced, and its episodes restart", RuntimeWarning, stacklevel=2
        )
        # A process that was never ready has received nothing but its job, so its successor does the same.
        self._launch(process.job if process.running is None else self.successor_job(index))
        self._failed.discard(index)
        self.on_replaced(index)
        if self._wants_states:
            self.send(index, "send_state")
        if self._call is not None:
            self.send(index, "await_call", self._calls)

    def _discard(self, process: WorkerHandle) -> None:
        """End a process that has failed."""
        index = process.job.index
        self._pipes.remove(process.pipe)
        process.kill()
        self._control[index][:] = 0  # the successor uses the same array
        self._failed.add(index)

    def _describe(self, index: int) -> str:
        lanes = self._own[index]
        last = lanes.stop - 1
        which = f"environment {last}" if lanes.start == last else f"environments {lanes.start} to {last}"
        return f"worker {index} ({which})"
