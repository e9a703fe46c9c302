"""State trees in files: one zip that holds JSON and arrays, and nothing that could run."""

from noterl.saving.archive import read, write
from noterl.saving.arrays import read_weights, write_weights
from noterl.saving.config import decode, encode
from noterl.utils.files import FileError, check_writable

__all__ = ["FileError", "check_writable", "decode", "encode", "read", "read_weights", "write", "write_weights"]
