"""The capability `device_programs` of JAX; `noterl.backends.interface.DevicePrograms` documents the functions."""

from noterl.backends.jax.device import DeviceProgram as DeviceProgram
from noterl.backends.jax.population import make_members as make_members
from noterl.backends.jax.replay import ReplayProgram as ReplayProgram
from noterl.backends.jax.scope import loops_are_fast as loops_are_fast
