"""The capability `device_programs` of JAX; `noterl.backends.interface.DevicePrograms` documents the functions."""

from noterl.backends.jax.device import DeviceProgram
from noterl.backends.jax.population import make_members
from noterl.backends.jax.replay import ReplayProgram
from noterl.backends.jax.scope import loops_are_fast

__all__ = ["DeviceProgram", "ReplayProgram", "loops_are_fast", "make_members"]
