"""State trees in files: one zip that holds JSON and arrays, and nothing that can run."""

from noterl.saving.archive import read, write
from noterl.saving.arrays import read_weights, write_weights
from noterl.saving.codec import Arguments, Description, build
from noterl.utils.files import FileError, check_writable
