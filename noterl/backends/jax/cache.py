"""JAX's persistent compilation cache, in noterl's folder.

JAX's own cache writes files in place, so another process may read one that is half written, and a file that is damaged
stays and warns in each run. With a size limit, JAX's cache locks the folder for each program and needs another
package. JAX has no public way to exchange the cache, so the constructor of the cache is replaced; noterl's cache is off
in a JAX that has no such constructor.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import jaxlib

from noterl.utils import compilation_cache

_LIMIT = 256 * 2**20  # a program takes 2 to 90 kB
_MIN_COMPILE_TIME = "jax_persistent_cache_min_compile_time_secs"


def enable() -> None:
    """Store compiled programs in noterl's folder, unless the user chose a folder or switched JAX's cache off."""
    if jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache:
        return
    try:
        from jax._src import compilation_cache as internal

        of_jax = internal.get_file_cache
    except (ImportError, AttributeError):
        return
    folder = compilation_cache.folder("jax", jaxlib.__version__)
    if folder is None:
        return

    def get_file_cache(path: str) -> Any:
        if path != str(folder):
            return of_jax(path)
        store: Any = compilation_cache.Store(folder, _LIMIT)
        store._path = folder  # JAX names it in log messages
        return store, path

    internal.get_file_cache = get_file_cache
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _MIN_COMPILE_TIME.upper() not in os.environ and getattr(jax.config, _MIN_COMPILE_TIME) == 1.0:  # JAX's default
        # Also the small programs, because reading one takes less time than compiling it.
        jax.config.update(_MIN_COMPILE_TIME, 0.0)
