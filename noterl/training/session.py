"""The session of an agent: environments, callbacks and restored state that its `fit` calls share."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from noterl import backends, envs
from noterl.algorithm import Algorithm
from noterl.callback import Events
from noterl.collect import Lanes, WorkerSettings, open_lanes
from noterl.collect.env_calls import EnvCall
from noterl.envs.source import resolve_like
from noterl.history import History
from noterl.learning.metrics import MetricMeans
from noterl.training import console
from noterl.training.dispatch import CallbackList
from noterl.types import InfoSpec, StopRequest
from noterl.utils.interrupts import InterruptGuard, StepGate

_SECONDS_AT_EXIT = 10  # for the step in progress, which may hang


class Session:
    """The environments, callbacks and results of an agent's `fit` calls.

    Args:
        algorithm: the agent, from whose generators the environments are seeded.

    Attributes:
        team_reward: `MultiAgent.team_reward` of several agents; None for one agent.
        guard: defers Ctrl-C, SIGTERM and SIGHUP during `fit` and `pretrain`.
        gate: runs functions of other threads between two steps of `fit` and `pretrain`.
        lanes: the open environments; None if no environments are open.
        callbacks: the callbacks of the last `fit`.
        events: the bound callbacks during a `fit`; empty otherwise.
        history: the record of the last `fit`; None before the first.
        stop: the stop request of the last `fit`, which ends after the step in progress if the request is set.
        metrics: the means of the scalars that updates log, for the logs of episodes.
        fits: number of `fit` calls that started training.
        is_training: whether a `fit` is running.
        verbose: the verbosity of the last `fit`.
        info: the argument `info` of the last `fit`, as reductions by key.
        restored_callbacks: restored states of callbacks, by key, for the next `fit` with such callbacks.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._env = algorithm.get_config().get("env")
        self._source = algorithm.spaces.source
        self._generators = algorithm.generators
        self.team_reward: Callable[..., Any] | None = getattr(algorithm, "team_reward", None)
        self._other: tuple[Any, envs.EnvSource] | None = None  # the environment of the last fit that differs from `env`
        self.guard: InterruptGuard = InterruptGuard()
        self.gate: StepGate = StepGate()
        self.lanes: Lanes | None = None
        self.callbacks: CallbackList = CallbackList()
        self.events: Events = Events()
        self.history: History | None = None
        self.stop: StopRequest = StopRequest()
        self.metrics: MetricMeans = MetricMeans()
        self.fits: int = 0
        self.is_training: bool = False
        self.verbose: int = 1
        self.info: dict[str, str] = {}
        self.restored_callbacks: dict[str, Any] = {}
        self._saved_lanes: dict[str, Any] | None = None  # of closed lanes, restored when they are opened again
        self._saved_source: envs.EnvSource | None = None  # the source of that state; None if it fits any

    @contextmanager
    def training(self) -> Iterator[None]:
        """Mark a `fit` as running inside the block; afterwards no callback handles events and no worker runs."""
        self.is_training = True
        # Python does not wait for daemon threads at its end; see `_stop_at_exit`.
        if threading.current_thread().daemon:
            atexit.register(self._stop_at_exit)
        try:
            yield
        except BaseException:
            self._end_lanes(hurry=True)
            raise
        else:
            self._end_lanes(hurry=False)
        finally:
            self.events = Events()
            self.is_training = False
            atexit.unregister(self._stop_at_exit)

    def _stop_at_exit(self) -> None:
        """End the `fit` of a daemon thread, which Python would end in the middle of C++ code: that aborts."""
        self.request_stop("the program has ended")
        deadline = time.monotonic() + _SECONDS_AT_EXIT
        while self.is_training and time.monotonic() < deadline:
            time.sleep(0.01)

    def refuse_while_training(self, method: str) -> None:
        """Raise a RuntimeError if a `fit` is running, or if gradients are off in a method that trains."""
        if method in ("fit", "pretrain"):
            backends.check_gradients()
        if self.is_training:
            raise RuntimeError(f"{method} cannot be called while fit is running: end training with stop(reason) first")

    def request_stop(self, reason: Any) -> None:
        """End training after the step in progress; `Agent.stop` documents the errors."""
        if not isinstance(reason, str):
            raise ValueError(f"reason must be a str, got {reason!r}")
        self.stop.is_set = True
        self.stop.reason = reason

    def show_message(self, message: str) -> None:
        """Write a line to standard error, unless `fit` was called with `verbose=0`."""
        if self.verbose:
            console.print_message(f"noterl: {message}")

    def _end_lanes(self, *, hurry: bool) -> None:
        """End the worker processes, if there are any."""
        if self.lanes is not None:
            self.lanes.end(hurry=hurry)

    def call_envs(self, call: EnvCall) -> list[Any]:
        """Return the results of a call of all training environments.

        Raises:
            RuntimeError: if no `fit` is running.
            ValueError: if the call's name is not allowed, or the environments do not have it.
        """
        call.check()
        if not self.is_training or self.lanes is None:
            raise RuntimeError(f"{call} can only be called while fit is running, by a callback")
        return self.lanes.call(call)

    def find_source(self, env: Any, vectorize: bool = False) -> envs.EnvSource:
        """Return the source for `fit(env, vectorize=)`: the agent's, the last `fit`'s, or another one.

        Another source is kept, so that the next `fit` with the same `env` continues the episodes.

        Raises:
            ValueError: if `env` is not an environment, or its spaces differ from the agent's; if `vectorize` is set,
                and there is no vector environment for it.
        """
        source = self._source
        if env is not None and not _is_same(env, self._env):
            if self._other is None or not _is_same(env, self._other[0]):
                self._other = (env, resolve_like(env, source))
            source = self._other[1]
        return source.vectorized() if vectorize else source

    def open(
        self,
        source: envs.EnvSource,
        num_envs: int | None,
        *,
        restart: bool,
        workers: WorkerSettings | None = None,
        info_spec: InfoSpec | None = None,
        on_device: bool = False,
    ) -> Lanes:
        """Open the environments, or keep the open ones; unless `restart`, episodes in flight continue.

        Worker processes do not run before `Lanes.start`.

        Raises:
            ValueError: if `num_envs` is not the number of environments in a vector environment, or workers cannot make
                the environments. The episodes in flight are then kept for the next `fit`.
        """
        count = self.count(source, num_envs, workers)
        reused = self._reuse_open_lanes(source, count, restart, on_device) if workers is None else None
        if reused is not None:
            return reused
        arguments = source, count, self._generators, self.team_reward, info_spec, on_device, workers
        lanes: Lanes = self.guard.call(open_lanes, *arguments)
        lanes.guard = self.guard
        self.suspend()  # after the new lanes are made, because their constructor may refuse the arguments
        if self._saved_lanes and not restart and self._saved_source in (None, source):
            # Environments repeat their actions. If that is interrupted, the state is kept for the next `fit`.
            self.guard.call(lanes.set_state, self._saved_lanes)
        self.lanes = lanes
        self._saved_lanes = self._saved_source = None
        return lanes

    def _reuse_open_lanes(self, source: envs.EnvSource, count: int, restart: bool, on_device: bool) -> Lanes | None:
        """Keep, restart or suspend the open lanes for the next `fit`; return the lanes that stay open, or None."""
        lanes = self.lanes
        if lanes is not None and lanes.source is source and restart and source.num_envs is not None:
            lanes.restart()  # a vector environment can be reset without making it again
        elif lanes is not None and (restart or not lanes.serves(source, count, on_device)):
            self.suspend()
        if self.lanes is not None:
            self.lanes.claim()
        return self.lanes

    def count(self, source: envs.EnvSource, num_envs: int | None, workers: WorkerSettings | None = None) -> int:
        """Return the number of lanes: by default as in the last `fit`, but not less than one for each worker.

        Raises:
            ValueError: if `num_envs` is not the number of environments in a vector environment.
        """
        if source.num_envs is not None:
            if num_envs not in (None, source.num_envs):
                raise ValueError(f"num_envs is {num_envs}, but env is a vector environment of {source.num_envs}")
            return source.num_envs
        if num_envs is not None:
            return num_envs
        least = 1 if workers is None else workers.count  # each worker steps at least one lane
        if self.lanes is not None:
            return max(self.lanes.num_envs, least)
        return max(len(self._saved_lanes["lanes"]), least) if self._saved_lanes else least

    def suspend(self) -> None:
        """Close the environments and keep the state, so that the next `fit` with this source continues the episodes."""
        if self.lanes is not None:
            lanes = self.lanes
            self._saved_lanes = lanes.get_state()
            self._saved_source = lanes.source
            self.lanes = None
            self.guard.call(lanes.close)

    def close(self) -> None:
        """Close the environments without keeping the state."""
        if self.lanes is not None:
            self.lanes.close()
        self.lanes = self._saved_lanes = None

    def close_other(self) -> None:
        """Close the environments, and the source that was made for an argument `env` of `fit`."""
        self.close()
        if self._other is not None:
            self._other[1].close()
        self._other = None

    def lanes_state(self) -> Any:
        """Return the state of the environments, open or closed; None if there is none."""
        return self._saved_lanes if self.lanes is None else self.lanes.get_state()

    def restore(self, lanes_state: Any, callbacks: dict[str, Any]) -> None:
        """Close the environments and keep a saved state of environments and callbacks for the next `fit`."""
        self.close()
        self.callbacks = CallbackList()
        self._saved_lanes = lanes_state
        self._saved_source = None  # a saved state fits any source
        self.restored_callbacks = dict(callbacks)

    def use_callbacks(self, callbacks: CallbackList, agent: Any) -> None:
        """Use these callbacks in the `fit` that begins, with the restored states of these callbacks.

        Raises:
            ValueError: if a state does not fit its callback.
        """
        self.callbacks = callbacks
        callbacks.set_agent(agent)
        try:
            callbacks.set_state(self.restored_callbacks)
        except Exception as error:  # a state from a file may make a callback raise anything
            raise ValueError(f"callbacks: the restored state does not fit them: {error!r}") from error
        for key, _ in callbacks.keyed():
            self.restored_callbacks.pop(key, None)
        self.events = callbacks.bind()


def _is_same(env: Any, other: Any) -> bool:
    return env is other or (isinstance(env, str) and isinstance(other, str) and env == other)
