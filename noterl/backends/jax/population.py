"""Many members with one program: in threads on the CPU, in one vectorized call on other devices.

On two cores, a vectorized call of 16 members took 1.8 times as long as 16 calls: XLA's batched products of small
matrices are slow on the CPU, and no branch can be skipped. JAX releases the interpreter lock during a call, so threads
use all cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np

from noterl.backends import on_device
from noterl.backends.jax.device import DeviceProgram
from noterl.backends.jax.scope import compiler
from noterl.backends.on_device import Carry, Members, Report
from noterl.utils.cores import available_cores


class ThreadedMembers:
    """The members of a population, which share the program of one member.

    Args:
        program: the program.
        states: the values of the program's variables, for each member.
        keys: the key of each member, uint32 `[S, 2]`.
    """

    def __init__(self, program: DeviceProgram, states: Sequence[list[Any]], keys: np.ndarray) -> None:
        self.program: DeviceProgram = program
        self._states = [list(map(np.asarray, state)) for state in states]
        self._carries = [program.start(key) for key in keys]
        self._run = compiler(program.jit_compile)(partial(program.run, ends_early=False))
        self._play = jax.jit(program.play, static_argnums=2)
        self._compiled: set[Any] = set()  # the programs that were called

    def run(self, begin: int, end: int, scheduled: np.ndarray) -> list[Report]:
        """Train all members from one position to another; return their reports on the host.

        A member whose update is not finite keeps its state from before that rollout until the call ends.
        """
        results = self._map(
            "run",
            lambda member: self._run(
                self._states[member], self._carries[member], np.int32(begin), np.int32(end), scheduled
            ),
        )
        self._states, self._carries = [each[0] for each in results], [each[1] for each in results]
        return [jax.tree.map(np.asarray, each[2]) for each in results]

    def play(self, key: np.ndarray, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Play the same episodes with each member; return returns and lengths, `[S, episodes]`."""
        results = self._map(("play", episodes), lambda member: self._play(self._states[member], key, episodes))
        returns, lengths = (np.stack([np.asarray(each[k]) for each in results]) for k in (0, 1))
        return returns, lengths

    def state(self, member: int) -> list[np.ndarray]:
        """Return the values of the variables of a member."""
        return [np.array(value) for value in self._states[member]]

    def carry(self, member: int) -> Carry:
        """Return what the next call of a member receives."""
        return self._carries[member]

    def _map(self, program: Any, function: Callable[[int], Any]) -> list[Any]:
        """Return the results of a function of each member, which are complete.

        Args:
            program: identifies the compiled program that the function calls.
            function: the function of a member's number.
        """

        def complete(member: int) -> Any:
            return jax.block_until_ready(function(member))

        with ThreadPoolExecutor(available_cores()) as pool:
            # The first call of a program compiles it; the other members then find it.
            first = [] if program in self._compiled else [complete(0)]
            self._compiled.add(program)
            return [*first, *pool.map(complete, range(len(first), len(self._states)))]


class VectorizedMembers:
    """The members of a population, trained by one vectorized call; the interface is that of `ThreadedMembers`."""

    def __init__(self, program: DeviceProgram, states: Sequence[list[Any]], keys: np.ndarray) -> None:
        self.program = program
        self._states = [np.stack(values) for values in zip(*states, strict=True)]
        compiled = compiler(program.jit_compile)
        self._carries = compiled(jax.vmap(program.start))(keys)
        self._run = compiled(jax.vmap(partial(program.run, ends_early=False), in_axes=(0, 0, None, None, None)))
        self._play = jax.jit(jax.vmap(program.play, in_axes=(0, None, None)), static_argnums=2)

    def run(self, begin: int, end: int, scheduled: np.ndarray) -> list[Report]:
        """Train all members; see `ThreadedMembers.run`."""
        self._states, self._carries, report, _ = self._run(
            self._states, self._carries, np.int32(begin), np.int32(end), scheduled
        )
        report = jax.tree.map(np.asarray, report)
        return [jax.tree.map(lambda values: values[member], report) for member in range(len(report.ended))]  # noqa: B023

    def play(self, key: np.ndarray, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Play the same episodes with each member; return returns and lengths, `[S, episodes]`."""
        returns, lengths = self._play(self._states, key, episodes)
        return np.asarray(returns), np.asarray(lengths)

    def state(self, member: int) -> list[np.ndarray]:
        """Return the values of the variables of a member."""
        return [np.array(values[member]) for values in self._states]

    def carry(self, member: int) -> Carry:
        """Return what the next call of a member receives."""
        carry: Carry = jax.tree.map(lambda values: values[member], self._carries)
        return carry


def make_members(program: on_device.DeviceProgram, states: Sequence[list[Any]], keys: np.ndarray) -> Members:
    """Return the members of a population, in the way that is faster on JAX's default device."""
    assert isinstance(program, DeviceProgram)
    members = ThreadedMembers if jax.default_backend() == "cpu" else VectorizedMembers
    return members(program, states, keys)
