"""When the phases of workers begin."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from noterl.collect.workers.process import Inbox
from noterl.collect.workers.schedule import Phases
from noterl.collect.workers.settings import Workers
from noterl.collect.workers.shared_memory import Ring
from noterl.collect.workers.worker import CONTROL_SIZE

pytestmark = pytest.mark.backend_free


class LateInbox(Inbox):
    """An inbox whose worker publishes rows right after the learner has looked for them.

    Attributes:
        late: how many rows, once.
    """

    late = 0

    @property
    def rows(self) -> int:
        found = super().rows
        late, self.late = self.late, 0
        self.ring.publish(late)
        return found


def test_phase_does_not_begin_before_the_last_rows_of_another_are_consumed() -> None:
    inbox = LateInbox(Ring({"reward": np.zeros(8)}, np.zeros(2, np.int64)), 1)
    supervisor: Any = Mock()
    publisher: Any = Mock()
    publisher.changes.return_value = [{}]
    control = [np.zeros(CONTROL_SIZE, np.int64)]
    settings = Workers(1, collect=3)
    lanes: Any = Mock(supervisor=supervisor, inboxes=[inbox], control=control, num_envs=1, settings=settings)
    phases = Phases(lanes, publisher)
    phases.prepare_round(0, 0, None)
    supervisor.send.assert_called_once_with(0, "collect", 3, 0, {})
    inbox.ring.publish(2)
    inbox.ring.release(2)
    inbox.late = 1  # the worker publishes its last round during the call
    phases.prepare_round(2, 5, None)
    supervisor.send.assert_called_once()
    inbox.ring.publish(inbox.late)  # if the call has not looked
    inbox.late = 0
    inbox.ring.release(1)
    phases.prepare_round(3, 5, None)
    assert supervisor.send.call_args.args == (0, "collect", 3, 3, {}) and supervisor.send.call_count == 2
