"""Saving nested state (a state tree) in a zip file of JSON and arrays, without executable code."""

from noterl.saving.archive import read as read
from noterl.saving.archive import run_of as run_of
from noterl.saving.archive import write as write
from noterl.saving.arrays import read_weights as read_weights
from noterl.saving.arrays import write_weights as write_weights
from noterl.saving.codec import Arguments as Arguments
from noterl.saving.codec import Description as Description
from noterl.saving.codec import build as build
from noterl.utils.files import FileError as FileError
from noterl.utils.files import check_writable as check_writable
