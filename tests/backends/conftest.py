"""The ways in which torch checks that updates are finite; other backends have one."""

from __future__ import annotations

import os

import pytest

WAYS = ["update", "group"] if os.environ.get("KERAS_BACKEND") == "torch" else ["update"]


@pytest.fixture(params=WAYS)
def checked_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Check each update, or whole groups as on an accelerator."""
    if request.param == "group":
        from noterl.backends.torch import seeding, updates

        monkeypatch.setattr(updates, "waits_for_device", lambda device: True)
        never = property(lambda calls: False, lambda calls, value: None)  # otherwise the first call is not a group
        monkeypatch.setattr(seeding.SeededCalls, "may_sample", never, raising=False)
    return str(request.param)
