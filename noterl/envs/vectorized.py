"""Makers of vector environments: the native vector environment of a gymnasium id, and the base class of others."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from noterl.envs.making import make_registered, spec_of
from noterl.envs.packages import named_packages
from noterl.envs.spaces import show
from noterl.registry import Configurable

# gymnasium's environments that are functions on JAX arrays. Their vector environments call them without compilation.
_UNCOMPILED = ("gymnasium.envs.phys2d", "gymnasium.envs.tabular")


class VectorMaker(Configurable):
    """Makes the vector environment of a training, with any number of lanes, and single environments for evaluation.

    An agent accepts a maker as `env`. `fit(num_envs=N)` then steps a vector environment of N lanes. `evaluate` and
    `play` use single environments.

    Attributes:
        frame_stack: the number of frames in an observation that is a stack, so that a default memory stores each frame
            once; None for other observations.
    """

    frame_stack: int | None = None

    def make_vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        """Return a vector environment of `num_envs` lanes."""
        raise NotImplementedError(f"{type(self).__name__} must define make_vector(num_envs)")

    def make_single(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """Return one environment to evaluate in."""
        raise NotImplementedError(f"{type(self).__name__} must define make_single(render_mode)")


class RegisteredVector(VectorMaker):
    """The native vector environment of a gymnasium id, for `fit(vectorize=True)`.

    Args:
        env: an id or a spec.

    Raises:
        ValueError: if the id is unknown or has no vector environment, if gymnasium steps it in uncompiled JAX, or if
            wrappers are around the environment.
    """

    def __init__(self, env: str | EnvSpec) -> None:
        spec = spec_of(env)
        entry = spec.vector_entry_point
        if entry is None:
            raise ValueError(
                f"vectorize must be False for {show(spec.id)}: gymnasium has no vector environment for this id; "
                "num_envs= steps its environments in turn, workers= in processes"
            )
        if str(getattr(entry, "__module__", entry)).startswith(_UNCOMPILED):
            raise ValueError(
                f"vectorize must be False for {show(spec.id)}: gymnasium's vector environment of this id calls JAX "
                "without compilation, which is slower than num_envs="
            )
        if spec.additional_wrappers:
            raise ValueError(
                f"vectorize must be False for {show(spec.id)} with wrappers, because they wrap single environments"
            )
        self._spec = spec

    def make_vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        """Return a vector environment of `num_envs` lanes.

        Raises:
            ImportError: if the environment needs a package that is not installed.
        """
        with named_packages(f"env: {show(self._spec.id)} cannot be made"):
            vector = gymnasium.make_vec(self._spec, num_envs, vectorization_mode="vector_entry_point")
        # ale-py writes the autoreset mode into a dict that all vector environments share.
        vector.metadata = dict(vector.metadata)
        return vector

    def make_single(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """Return one environment of this id."""
        return make_registered(self._spec, render_mode)
