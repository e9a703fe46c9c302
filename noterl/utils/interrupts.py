"""Signals and calls of other threads during training, which wait until the agent is consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from noterl.utils.errors import keep_first_error

# The signals that end a process: SIGTERM of a scheduler, and SIGHUP of a terminal that is closed, such as by an ssh
# connection that drops.
_ENDING = (signal.SIGTERM, signal.SIGHUP)

# Seconds after which a call of another thread is tried again. If one event lasts longer, a callback probably waits for
# that thread.
PATIENCE = 1.0

T = TypeVar("T")

_installed: list[InterruptGuard] = []  # those that handle signals now, the innermost last


def check_signals() -> None:
    """Raise the exception of a signal that a `fit` has deferred; called between the steps of evaluations."""
    if _installed and _installed[-1].pending is not None and threading.current_thread() is threading.main_thread():
        # Not by `check`: the callback that evaluates is not done, so the agent is not between two steps.
        raise _installed[-1]._take()


class InterruptGuard:
    """Defers Ctrl-C (SIGINT), SIGTERM and SIGHUP, so that signals never interrupt a step, a write or a compiled call.

    The first signal is stored, and `check` raises the exception: KeyboardInterrupt for SIGINT, and SystemExit for the
    others, with the exit status of a process that the signal ends: 143 for SIGTERM, 129 for SIGHUP. A second signal
    raises immediately if an environment or a callback runs, because these may hang. Elsewhere the agent may be in the
    middle of a change, so the second signal waits for `check` too.

    Outside the main thread, signals cannot be handled, so nothing is deferred. If the program handles or ignores
    SIGTERM or SIGHUP itself, the signal is left to the program. The handler that `ray.init` installs does not count:
    that handler would end the process in the middle of a step.

    Attributes:
        pending: the number of the stored signal; None if there is none.
        is_open: whether an environment or a callback runs. The callers set and, in a `finally` clause, reset the flag.
        deferred: the last exception that `check` has raised, between two steps.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self.is_open: bool = False
        self.deferred: BaseException | None = None

    def check(self) -> None:
        """Raise the exception of the signal that was deferred, if there is one."""
        if self.pending is not None:
            self.deferred = self._take()
            raise self.deferred

    def _take(self) -> BaseException:
        """Return the exception of the stored signal, which is then no longer stored."""
        number = self.pending
        self.pending = None
        return SystemExit(128 + number) if number is not None and number in _ENDING else KeyboardInterrupt()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function of an environment or a callback, which a second signal interrupts."""
        was_open = self.is_open
        try:
            self.is_open = True
            return function(*args)
        finally:
            self.is_open = was_open

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Defer even a second signal inside the block, where a callback changes the whole agent."""
        was_open = self.is_open
        self.is_open = False
        try:
            yield
        finally:
            self.is_open = was_open

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside the block; a signal that is still stored at the end is raised there."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # A shell lets the background jobs of a script ignore Ctrl-C.
        handled = [] if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else [signal.SIGINT]
        for number in _ENDING:
            handler = signal.getsignal(number)
            if handler == signal.SIG_DFL or getattr(handler, "__module__", "").startswith("ray."):
                handled.append(number)
        previous: dict[int, Any] = {}
        try:
            for number in handled:
                previous[number] = signal.signal(number, self._handle)
            _installed.append(self)
            yield
        except BaseException as error:
            with keep_first_error(error):
                self._restore(previous)
            raise
        else:
            self._restore(previous)

    def _restore(self, handlers: dict[int, Any]) -> None:
        """Restore the handlers from before the block, and raise a stored signal."""
        if self in _installed:
            _installed.remove(self)
        for number, handler in reversed(handlers.items()):  # Ctrl-C is the last, because it may raise at once
            signal.signal(number, handler if handler is not None else signal.default_int_handler)
        self.check()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Store a signal, or raise at once for a second signal if `is_open`; Python calls this in the main thread."""
        is_second = self.pending is not None
        if self.pending not in _ENDING:  # a Ctrl-C does not replace the signal, because the process must end
            self.pending = number
        if is_second and self.is_open:
            self.is_open = False  # the `finally` clause that does so may be what is interrupted
            raise self._take()


class StepGate:
    """Lets other threads use an agent between two steps of the thread that trains the agent, and never within one.

    The training thread calls the functions of the others, which wait for the results. `with gate:` is an event between
    two steps. If a callback of the event waits for another thread, that thread calls its function itself.

    Attributes:
        queue: the functions that wait for the training thread, each with the `Future` of its result.
    """

    def __init__(self) -> None:
        self.queue: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._lock = threading.RLock()
        self._owner: int | None = None  # the thread that trains
        self._event: object = None  # differs for each event; None if none is in progress

    def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function, which is called while the agent is consistent."""
        waited_in: object = None
        while self._owner != threading.get_ident():
            with self._lock:  # no training begins and no event ends while this thread has the lock
                if self._owner is None or (waited_in is not None and waited_in is self._event):
                    return function()
                waited_in, future = self._event, Future[T]()
                self.queue.append((future, function))
            wait([future], PATIENCE)
            if not future.cancel():  # the function is being called, or has been
                return future.result()
        return function()

    def serve(self) -> None:
        """Call the functions in the queue; the training thread does so between two steps."""
        for _ in range(len(self.queue)):  # a function that is added meanwhile waits for the next step
            future, function = self.queue.pop(0)
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
                    if not isinstance(error, Exception):  # a signal ends the training too
                        raise

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Let other threads wait for this thread inside the block."""
        with self._lock:
            outer = self._owner
            self._owner = threading.get_ident()
        try:
            yield
        finally:
            self._owner = outer

    def __enter__(self) -> None:
        self._event = object()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._event = None
