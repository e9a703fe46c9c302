"""Demonstrations: the observations, actions and rewards of an expert's episodes."""

from noterl.data.dataset import Dataset
from noterl.registry import register


@register
class Demonstrations(Dataset):
    """Episodes of an expert: a `noterl.Dataset` whose actions are all in the action space.

    Arguments, attributes and methods are as in `noterl.Dataset`.

    Raises:
        ValueError: also if a Box action is outside of the bounds.
    """

    _checks_bounds = True
