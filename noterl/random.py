"""Named random generators that depend on one seed.

A generator depends on the seed and the name only. The order of creation does not matter, so a new part of an agent does
not change the random numbers of another.
"""

from __future__ import annotations

import contextlib
import contextvars
import random as python_random
import secrets
import sys
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

# Generators whose names start with this are the same in all processes of a run: they are of the global batch.
SHARED = "update/"

# Held while Python's or torch's global generator is seeded, so that agents in other threads do not sample from it.
GLOBAL_GENERATORS = threading.RLock()

_network_generator: contextvars.ContextVar[np.random.Generator | None] = contextvars.ContextVar(
    "network_generator", default=None
)


class Generators:
    """Named NumPy generators that are created from one seed.

    Args:
        seed: a non-negative int, or None for a random one, which the attribute `seed` then holds.

    Raises:
        ValueError: if the seed is not a non-negative int.

    Example:
    >>> from noterl.random import Generators
    >>> int(Generators(7)("exploration").integers(100)) == int(Generators(7)("exploration").integers(100))
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        self._branch: tuple[int, ...] = ()
        self.reseed(seed)

    def reseed(self, seed: int | None) -> None:
        """Create all generators again from a seed. Generators that were returned before are no longer used."""
        check_seed(seed)
        # 63 bits fit the seeds of environments and frameworks, and JSON readers in other languages.
        self.seed: int = int(seed) if seed is not None else secrets.randbits(63)
        self._generators: dict[str, np.random.Generator] = {}

    def __call__(self, name: str) -> np.random.Generator:
        """Return the generator of a name, always the same object; the first call makes the generator."""
        generator = self._generators.get(name)
        if generator is None:
            generator = self._generators[name] = np.random.Generator(self._bits(name, self.seed))
        return generator

    def shared_state(self) -> dict[str, Any]:
        """Return the seed, and the states of the generators that are the same in all processes of a run."""
        state = self.get_state()
        return {**state, "states": {name: bits for name, bits in state["states"].items() if name.startswith(SHARED)}}

    def join(self, state: dict[str, Any], rank: int, step: int) -> None:
        """Use the seed and the shared generators of another process, and numbers of this process's own otherwise.

        Args:
            state: `shared_state` of the process with rank 0.
            rank: of this process, above 0.
            step: environment steps so far, so that a resumed run does not repeat the numbers of the run before.
        """
        # The same process continues: its own generators go on where they are.
        if self._branch[:1] == (rank,) and self.seed == state["seed"]:
            state = {"seed": self.seed, "states": {**self.get_state()["states"], **state["states"]}}
        else:
            self._branch = (rank, step)
        self.set_state(state)

    def _bits(self, name: str, seed: int) -> np.random.PCG64:
        """Return the bit generator of a name in the initial state; the branch separates the processes of a run."""
        branch = () if name.startswith(SHARED) else self._branch
        # `crc32` instead of `hash`, which differs between processes.
        return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()), *branch)))

    def get_state(self) -> dict[str, Any]:
        """Return the seed and the state of every generator that was created."""
        states = {name: generator.bit_generator.state for name, generator in sorted(self._generators.items())}
        return {"seed": self.seed, "states": states}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`. The generators stay the same objects.

        Raises:
            ValueError: if the state is malformed; the generators are then unchanged.
        """
        try:
            check_seed(state["seed"])
            seed = int(state["seed"])
            saved = state["states"]
            # Generators that a state lacks start from the new seed.
            names = sorted(set(self._generators) | set(saved))
            # New bit generators first, so that a malformed state changes nothing.
            states = {name: self._bits(name, seed) for name in names}
            for name, value in saved.items():
                states[name].state = value
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"the state of the generators is malformed: {error}") from error
        self.seed = seed
        # In place, because parts of the agent hold the generators.
        for name, bits in states.items():
            self(name).bit_generator.state = bits.state


def selection_seed(seed: int) -> int:
    """Return the seed of evaluations that choose an agent; `evaluate` with `seed` then plays other episodes.

    The highest of several noisy results is too high, and the same episodes would return the same result again.
    """
    return int(Generators(seed)("selection").integers(2**31))


def check_seed(seed: Any) -> None:
    """Raise a ValueError if the seed is not a non-negative int below 2**128, or None."""
    is_int = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    # NumPy's default seeds have 128 bits. It takes seconds for seeds of 10^5 digits, and Python does not print them.
    if is_int and seed >= 2**128:
        raise ValueError("seed must be below 2**128")
    if seed is not None and (not is_int or seed < 0):
        raise ValueError(f"seed must be a non-negative int or None, got {seed!r}")


def network_generator() -> np.random.Generator:
    """Return the generator of initial weights.

    Inside `construction`, this is the generator "networks" of the seed, elsewhere a new generator without a seed.
    """
    return _network_generator.get() or np.random.default_rng()


def seed_layers(seed: int) -> None:
    """Seed the generators that layers use, inside of `construction`."""
    _network_generator.set(Generators(seed)("networks"))
    python_random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.random.default_generator.manual_seed(seed % 2**63)  # torch does not accept seeds of 128 bits


@contextlib.contextmanager
def construction(seed: int) -> Iterator[None]:
    """Make the networks that are built in this context reproducible from `seed`.

    Layers use global generators: Keras takes default seeds from Python's `random`, and torch modules use torch's global
    CPU generator. Both are seeded for the block and restored afterwards. Other threads that construct agents wait.
    """
    with GLOBAL_GENERATORS:
        token = _network_generator.set(None)
        python_state = python_random.getstate()
        # Not imported: without torch in the process, no layer uses its generator.
        torch = sys.modules.get("torch")
        torch_state = torch.random.get_rng_state() if torch else None
        seed_layers(seed)
        try:
            yield
        finally:
            python_random.setstate(python_state)
            if torch:
                torch.random.set_rng_state(torch_state)
            _network_generator.reset(token)
