"""Exporting the acting function of an agent to files that do not need noterl."""

from noterl.export.formats import FORMATS, export_policy
from noterl.export.policy import make_policy
