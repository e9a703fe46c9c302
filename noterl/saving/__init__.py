"""Saving nested state (a state tree) in a zip file of JSON and arrays, without executable code."""

from noterl.saving.archive import library_versions, read, run_of, write
from noterl.saving.arrays import read_weights, write_weights
from noterl.saving.codec import Arguments, Description, build
from noterl.saving.location import AGENT_FILE, HUB, LOG_FILE, RUN_FILE, locate
from noterl.utils.files import FileError, check_writable
