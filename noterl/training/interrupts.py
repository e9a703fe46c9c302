"""Ctrl-C, SIGTERM and SIGHUP during training, which are deferred until the agent is consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# The signals that end a process: SIGTERM of a scheduler, and SIGHUP of a terminal that is closed, such as by an ssh
# connection that drops. Windows has no SIGHUP.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


_installed: list[InterruptGuard] = []  # those that handle signals now, the innermost last


def check_signals() -> None:
    """Raise the exception of a signal that a `fit` has deferred; called between the steps of evaluations."""
    if _installed and _installed[-1].pending is not None and threading.current_thread() is threading.main_thread():
        _installed[-1].check()


class InterruptGuard:
    """Defers Ctrl-C (SIGINT), SIGTERM and SIGHUP, so that they never interrupt a step, a write or a compiled call.

    The first signal is stored, and `check` raises its exception: KeyboardInterrupt for SIGINT, and SystemExit for the
    others, with the exit status of a process that the signal ends: 143 for SIGTERM, 129 for SIGHUP. A second signal
    raises immediately, in case an environment hangs. Outside the main thread, signals cannot be handled, so nothing is
    deferred. If the program handles or ignores SIGTERM or SIGHUP itself, the signal is left to the program. The handler
    that `ray.init` installs does not count: it would end the process in the middle of a step.
    """

    def __init__(self) -> None:
        self.pending: int | None = None  # the number of the stored signal
        self._critical = False

    def check(self) -> None:
        """Raise the exception of the signal that was deferred, if there is one."""
        number, self.pending = self.pending, None
        if number is not None:
            raise SystemExit(128 + number) if number in _ENDING else KeyboardInterrupt

    @contextmanager
    def critical(self) -> Iterator[None]:
        """Defer even a second signal: between a compiled call and its write-back the variables are inconsistent."""
        self._critical = True
        try:
            yield
        finally:
            self._critical = False

    @contextmanager
    def installed(self) -> Iterator[InterruptGuard]:
        """Handle the signals inside the block."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        # A shell lets the background jobs of a script ignore Ctrl-C.
        handled = [] if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else [signal.SIGINT]
        for number in _ENDING:
            handler = signal.getsignal(number)
            if handler == signal.SIG_DFL or getattr(handler, "__module__", "").startswith("ray."):
                handled.append(number)
        previous = {number: signal.signal(number, self._handle) for number in handled}
        _installed.append(self)
        try:
            yield self
        finally:
            _installed.remove(self)
            for number, handler in previous.items():
                signal.signal(number, handler if handler is not None else signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = self.pending is not None
        if self.pending not in _ENDING:  # a Ctrl-C does not replace the signal, because the process must end
            self.pending = number
        if is_second and not self._critical:
            self.check()
