"""Device lanes: environments of JAX whose state stays on the device, and the pending events of the last call."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from noterl.collect.base import Lanes
from noterl.collect.env_calls import EnvCall
from noterl.collect.ledger import warn_restarted
from noterl.envs import EnvSource
from noterl.envs.functional import flatten, new_keys, unflatten
from noterl.random import Generators
from noterl.types import CallEvents
from noterl.utils.schema import Array, DictOf, Int, ListOf, check

_RESTART = "Their episodes restart"


class DeviceLanes(Lanes):
    """N environments of JAX on the device; a compiled call of `DeviceStepping` steps all environments many times.

    Args:
        source: holds the functions of the environment.
        num_envs: N.
        generators: the key of all random numbers on the device comes from the generator "environment/device".

    Attributes:
        carry: what the last compiled call returned; None before the first.
        position: the position within the rollout in progress.
        pending: the events of the last call whose hooks have not been called yet.
        learner: the learner of the rollout in progress; None if the rollout was restored from a file.
    """

    stepping_clock = "device"

    def __init__(self, source: EnvSource, num_envs: int, generators: Generators) -> None:
        super().__init__(source, num_envs)
        self._generators = generators
        self.restart()

    def serves(self, source: EnvSource, num_envs: int, on_device: bool) -> bool:
        """Return whether the open lanes can continue in a `fit` without workers with these settings."""
        return on_device and super().serves(source, num_envs, False)

    def call(self, call: EnvCall) -> list[Any]:
        """Refuse a call: pure functions have neither methods nor attributes.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{call}: an environment of pure functions on the device has no methods and attributes")

    def restart(self) -> None:
        """Discard what the lanes hold, including a restored state; the next `open` starts all environments."""
        super().restart()
        self.carry: Any = None
        self.position: Any = 0
        self.pending: CallEvents | None = None
        self.learner: Any = None
        self._restored_leaves: list[Any] | None = None  # the arrays of `carry` in a state, until `open` has the program

    def open(self, runner: Any, learner: Any) -> None:
        """Start all environments, or continue the ones of the last `fit` or of a file; called when a `fit` begins.

        Another learner starts a new rollout. If the saved arrays do not fit the program, all episodes restart.

        Args:
            runner: of the learner; see `noterl.learning.device`.
            learner: the learner.
        """
        if self._restored_leaves is not None:
            leaves = self._restored_leaves
            self._restored_leaves = None
            try:
                # The structure of a new carry, whose random key does not matter, and the saved arrays.
                self.carry = unflatten(runner.program.start(np.zeros(2, np.uint32)), leaves)
            except ValueError as error:
                self.restart()
                warn_restarted("the environments on the device", str(error), _RESTART)
            else:
                runner.release()  # a ring of transitions from before belongs to other environments
        if self.position >= runner.program.size:  # the position is beyond the rollout of this program
            self.restart()
        if self.carry is None:
            self.carry = runner.program.start(new_keys(self._generators("environment/device")))
            runner.on_start()
        elif self.learner not in (None, learner):
            self.position = 0
            self.carry = runner.adopt(self.carry)
        self.learner = learner

    def reset(self, lane: int, number: int, step: int) -> None:
        """Start episode `number` in a lane, whose environment the compiled call has reset already."""
        self.ledger.begin(lane, number)

    def _refuse(self, *arguments: Any, **options: Any) -> Any:
        """Refuse a single step: the compiled call chooses actions and steps, and observations stay on the device."""
        raise NotImplementedError("environments of JAX are stepped by compiled calls only")

    observations = begin_round = tick = _refuse

    def get_state(self) -> dict[str, Any] | None:
        """Return the arrays on the device, the position, the ledger and the pending events; None before a start."""
        leaves = self._restored_leaves if self.carry is None else flatten(self.carry)
        if leaves is None:
            return None
        pending = None if self.pending is None else asdict(self.pending)
        return {
            "ledger": self.ledger.get_state(),
            "lanes": [{}] * self.num_envs,
            "device": {"leaves": leaves, "position": self.position, "pending": pending},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of `get_state`; after a state of environments on the host, all episodes restart.

        A state of another number of lanes is ignored, because the user chose the number (`num_envs`).
        """
        saved = state.get("device")
        if saved is None:
            warn_restarted("the environments on the device", "the state is of environments on the host", _RESTART)
        if saved is None or len(state["lanes"]) != self.num_envs:
            return
        self.ledger.set_state(state["ledger"])
        self._restored_leaves = saved["leaves"]
        self.position = saved["position"]
        if saved["pending"] is not None:
            self.pending = CallEvents(**saved["pending"])


def check_device_state(state: dict[str, Any], count: int) -> None:
    """Check the part "device" of a state of `count` lanes.

    Raises:
        ValueError: if `DeviceLanes.get_state` cannot have returned the part.
    """
    check(state, {"leaves": ListOf(Array()), "position": Int(0, 2**40), "pending": (dict, None)}, "lanes['device']")
    if state["pending"] is not None:
        _check_events(state["pending"], count)


def _check_events(state: Any, num_envs: int) -> None:
    """Check the fields of `CallEvents` in a state, which may come from a hostile file.

    Raises:
        ValueError: if the events are malformed.
    """
    ends = len(state["ends"])
    groups = len(state["applied"])
    last = Int(0, 2**40)
    expected = {
        "first_step": Int(-(2**40), 2**62),
        "last": last,
        "ends": Array(np.int64, (ends,)),
        "returns": Array(np.float64, (ends,)),
        "lengths": Array(np.int64, (ends,)),
        "learns": Array(np.int64, (groups,)),
        "due": Array(np.int64, (groups,)),
        "applied": Array(np.int64, (groups,)),
        "stopped": Array(np.bool_, (groups,)),
        "logs": DictOf(Array()),
        "returns_after": Array(np.float64, (num_envs,)),
        "lengths_after": Array(np.int64, (num_envs,)),
        "next_end": Int(0, ends),
        "next_learn": Int(0, groups),
    }
    check(state, expected, "the events of the lanes")
    due = state["due"]
    shapes = {value.shape[:1] for value in state["logs"].values()}
    # The logs have one value for each due update.
    fits = "loss" in state["logs"] and shapes == {(int(due.sum()),)} and bool((due > 0).all())
    in_order = all((np.diff(state[name], prepend=-1, append=state["last"]) > 0).all() for name in ("ends", "learns"))
    if not in_order or not fits:
        raise ValueError("the events of the lanes are malformed")
