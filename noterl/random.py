"""One seed, and the generators that are named after what they serve.

Owns: every source of randomness of a run. A generator depends on the seed and its own name alone, never on the order in
which generators were asked for, so adding a part does not change the draws of another.
"""

from __future__ import annotations

import contextlib
import contextvars
import random as python_random
import secrets
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

_network_generator: contextvars.ContextVar[np.random.Generator | None] = contextvars.ContextVar(
    "network_generator", default=None
)


class Generators:
    """The named NumPy generators that grow from one seed.

    Args:
        seed: a non-negative int, or None for a fresh one (readable as `seed` afterwards).

    Raises:
        ValueError: if the seed is not a non-negative int.

    Example:
    >>> from noterl.random import Generators
    >>> int(Generators(7)("exploration").integers(100)) == int(Generators(7)("exploration").integers(100))
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        """Start with no generator; each comes to be when it is first asked for."""
        self.reseed(seed)

    def reseed(self, seed: int | None) -> None:
        """Start every generator afresh from `seed`; generators handed out before are no longer those of their names."""
        check_seed(seed)
        # Seeds of 63 bits fit every consumer: environments, frameworks, JSON readers in other languages.
        self.seed = int(seed) if seed is not None else secrets.randbits(63)
        self._generators: dict[str, np.random.Generator] = {}

    def __call__(self, name: str) -> np.random.Generator:
        """Return the generator of this name; the same object every time."""
        generator = self._generators.get(name)
        if generator is None:
            generator = self._generators[name] = np.random.Generator(_bits(self.seed, name))
        return generator

    def get_state(self) -> dict[str, Any]:
        """Return the seed and the state of every generator asked for so far."""
        states = {name: generator.bit_generator.state for name, generator in sorted(self._generators.items())}
        return {"seed": self.seed, "states": states}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` said; generators handed out before stay the same objects.

        Raises:
            ValueError: if it is not such a state; nothing is changed then.
        """
        try:
            check_seed(state["seed"])
            seed, saved = int(state["seed"]), state["states"]
            names = sorted(set(self._generators) | set(saved))
            states = {name: _bits(seed, name) for name in names}
            for name, value in saved.items():
                states[name].state = value
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"the state of the generators is malformed: {error}") from error
        self.seed = seed
        for name, bits in states.items():
            self(name).bit_generator.state = bits.state


def check_seed(seed: Any) -> None:
    """Raise a ValueError that names it unless `seed` is a non-negative int or None."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
        raise ValueError(f"seed must be a non-negative int or None, got {seed!r}")


def _bits(seed: int, name: str) -> np.random.PCG64:
    """Return the bit generator of a name as it starts out."""
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()),)))


def network_generator() -> np.random.Generator:
    """Return the generator that initial weights are drawn from.

    While an agent is being built this is the agent's own, named "networks"; elsewhere a fresh, unseeded one.
    """
    return _network_generator.get() or np.random.default_rng()


@contextlib.contextmanager
def construction(seed: int) -> Iterator[None]:
    """Make everything built inside reproducible from `seed`, and leave the global generators as they were.

    Layers that users build draw from global generators: Keras takes its default seeds from Python's `random`,
    modules of torch from torch's own. Both are seeded for the duration and put back afterwards.
    """
    token = _network_generator.set(Generators(seed)("networks"))
    python_state = python_random.getstate()
    torch = sys.modules.get("torch")
    torch_state = torch.random.get_rng_state() if torch else None
    python_random.seed(seed)
    if torch:
        torch.random.default_generator.manual_seed(seed % 2**63)
    try:
        yield
    finally:
        python_random.setstate(python_state)
        if torch:
            torch.random.set_rng_state(torch_state)
        _network_generator.reset(token)
