"""A compilation cache for the tests of a module, so that agents of equal shapes share compiled programs."""

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def cached_programs(folder: Path) -> Iterator[None]:
    """Let JAX store its programs in a folder."""
    jax = importlib.import_module("jax")
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (str(folder), 0.0), strict=True):
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
