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
import jax.numpy as jnp
import numpy as np

from noterl.backends import on_device
from noterl.backends.jax.device import DeviceProgram
from noterl.backends.jax.scope import compiler, read_values, write_values
from noterl.backends.on_device import Carry, MemberCall, Members, Report
from noterl.utils.cores import available_cores


class ThreadedMembers:
    """The members of a population, which share the program of one member.

    Args:
        program: the program.
        members: the number of members.
    """

    def __init__(self, program: DeviceProgram, members: int) -> None:
        self.program: DeviceProgram = program
        self._play = jax.jit(program.play, static_argnums=2)
        self._compiled: set[Any] = set()  # the programs that were called

    def call(self, calls: Sequence[MemberCall]) -> list[tuple[Carry, Report]]:
        """Make the calls of some members, each as a call of `DeviceProgram`."""
        return _write(calls, self._map("call", lambda call: self.program.train(*_arguments(call)), calls))

    def play(self, variables: Sequence[Any], key: np.ndarray, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Play the same episodes with each member; return returns and lengths, `[S, episodes]`."""
        name = "play", episodes
        results = self._map(name, lambda member: self._play(read_values(member), key, episodes), variables)
        returns, lengths = (np.stack([np.asarray(result[k]) for result in results]) for k in (0, 1))
        return returns, lengths

    def _map(self, program: Any, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        """Return the results of a function of each value, which are complete.

        Args:
            program: identifies the compiled program that the function calls.
            function: the function.
            values: the arguments of the function.
        """

        def complete(value: Any) -> Any:
            return jax.block_until_ready(function(value))

        with ThreadPoolExecutor(available_cores()) as pool:
            # The first call of a program compiles it; the other members then find it.
            first = [] if program in self._compiled else [complete(values[0])]
            self._compiled.add(program)
            return [*first, *pool.map(complete, values[len(first) :])]


class VectorizedMembers:
    """The members of a population, trained by one vectorized call; with the interface of `ThreadedMembers`."""

    def __init__(self, program: DeviceProgram, members: int) -> None:
        self.program = program
        self._members = members
        compiled = compiler(program.training.updates.jit_compile)
        # Positions that differ by member are slower, because then no branch can be skipped.
        self._together, self._apart = (compiled(partial(self._run, in_axes=(0, 0, *[axis] * 3))) for axis in (None, 0))
        self._play = jax.jit(self._play_all, static_argnums=2)

    def call(self, calls: Sequence[MemberCall]) -> list[tuple[Carry, Report]]:
        """Make the calls of some members; see `ThreadedMembers.call`."""
        # A program is compiled for one number of members. Calls that are missing repeat the first one.
        arguments = list(map(_arguments, [*calls, *[calls[0]] * (self._members - len(calls))]))
        states, carries, begins, ends, scheduled = map(list, zip(*arguments, strict=True))
        same = len({(begin, end, values.tobytes()) for _, _, begin, end, values in arguments}) == 1
        places = (begins[0], ends[0], scheduled[0]) if same else tuple(map(np.stack, (begins, ends, scheduled)))
        results = (self._together if same else self._apart)(states, carries, *places)
        finished = []
        for inputs, (state, carry, report, finite) in zip(arguments[: len(calls)], results, strict=False):
            # A call that is not finite is repeated, because it ends with that update.
            alone = () if finite else self.program.train(*inputs)
            finished.append(alone or (state, carry, jax.tree.map(np.asarray, report)))
        return _write(calls, finished)

    def _run(self, states: list[Any], carries: list[Carry], *places: Any, in_axes: Any) -> list[Any]:
        """Return the results of `DeviceProgram.run` for each member; a member that fails keeps its weights."""
        run = jax.vmap(partial(self.program.run, ends_early=False), in_axes=in_axes)
        return _split(run(_stack(states), _stack(carries), *places))

    def play(self, variables: Sequence[Any], key: np.ndarray, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Play the same episodes with each member; return returns and lengths, `[S, episodes]`."""
        returns, lengths = self._play(list(map(read_values, variables)), key, episodes)
        return np.asarray(returns), np.asarray(lengths)

    def _play_all(self, states: list[Any], key: Any, episodes: int) -> Any:
        return jax.vmap(lambda state: self.program.play(state, key, episodes))(_stack(states))


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *values: jnp.stack(values), *trees)


def _split(tree: Any) -> list[Any]:
    count = len(jax.tree.leaves(tree)[0])
    return [jax.tree.map(lambda values: values[number], tree) for number in range(count)]  # noqa: B023


def _arguments(call: MemberCall) -> tuple[list[Any], Carry, Any, Any, np.ndarray]:
    return read_values(call.variables), call.carry, np.int32(call.begin), np.int32(call.end), call.scheduled


def _write(calls: Sequence[MemberCall], results: Sequence[tuple]) -> list[tuple[Carry, Report]]:
    """Write the variables of calls back, and return the other results."""
    for call, (state, _, _) in zip(calls, results, strict=True):
        write_values(call.variables, state)
    return [(carry, report) for _, carry, report in results]


def make_members(program: on_device.DeviceProgram, members: int) -> Members:
    """Return what makes the calls of the members of a population, in the way that is faster on JAX's default device."""
    assert isinstance(program, DeviceProgram)
    return (ThreadedMembers if jax.default_backend() == "cpu" else VectorizedMembers)(program, members)
