"""A callback that says what is wrong with a run."""

from __future__ import annotations

import numpy as np

from noterl.callback import AgentView, Budget, Callback, Every
from noterl.types import Logs

from .support.diagnosis import Finding, diagnose
from .support.probe import Probe, recent_rows

FIRST_UPDATES = 10  # before the first measurement
LEAST_UPDATES = 100  # before the first judgement
GROWTH = 1.25  # between measurements, in updates, so that the cost vanishes in long runs


class Doctor(Callback):
    """Watch a run, and say what is wrong with it, why the doctor thinks so, and what to try.

    The doctor looks at the data, the settings, the networks and what is learned; docs/callbacks.md lists the findings.
    Only a finding that the doctor is sure of counts, so the list of a healthy run is empty. A first finding is printed
    when it enters the list, and at the end.

    Measurements are made at the end of an episode, from 10 updates on, each after 25 % more updates than the last, with
    the newest 512 transitions. When training begins, up to 1 % of a budget of steps is played in a copy of the
    environment, with random and with constant actions. Training is not affected. Each `fit` is judged on its own, also
    after a resume.

    Attributes:
        findings: what is wrong now, the most likely cause first. A `Finding` has `name`, `message` (one sentence),
            `evidence` (figures by name) and `advice`.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import Doctor
    >>> agent = noterl.DQN("CartPole-v1", gamma=0.0, hidden=(8,), seed=1)
    >>> agent.compile(learning_starts=100, update_every=1, updates=1, batch_size=8)
    >>> doctor = Doctor()
    >>> history = agent.fit(steps=600, callbacks=[doctor], verbose=0)
    >>> doctor.findings[0].name, doctor.findings[0].evidence["horizon"]
    ('gamma_low', 1.0)
    """

    every = Every(1, "steps", at="episode")

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._series: dict[str, list[float]] = {}
        self._budget = Budget()
        self._probe: Probe | None = None

    def before_fit(self, agent: AgentView, budget: Budget) -> None:
        """Record the budget, and play the reference; each fit is judged on its own."""
        self._series = {}
        self._next: float = FIRST_UPDATES
        self._budget = budget
        steps = min(budget.last_step, budget.step_limit) - agent.steps
        self._probe = Probe(agent, int(steps // 100) if steps < np.inf and agent.spaces.source.team is None else 0)

    @property
    def measures(self) -> dict[str, list[float]]:
        """The series that are judged, by name: columns of the logs of episodes, and the values of each measurement."""
        return {**self.agent.history.history, **self._series}

    def on_due(self, logs: Logs) -> None:
        """Measure and judge, if enough updates have followed the last measurement."""
        rows = recent_rows(self.agent) if self.agent.steps and self.agent.updates >= self._next else None
        if rows is None or self._probe is None:
            return
        self._next = max(self.agent.updates + 1, GROWTH * self.agent.updates)
        values = self._probe.measure(rows)
        progress = self.agent.steps / self._budget.last_step, self.agent.episodes / self._budget.last_episode
        values["progress"] = max(progress)
        count = max(map(len, self._series.values()), default=0)
        for name in {*values, *self._series}:
            self._series.setdefault(name, [np.nan] * count).append(float(values.get(name, np.nan)))
        self._judge()

    def on_train_end(self, logs: Logs) -> None:
        """Judge once more, and print the first finding."""
        self._judge(is_end=True)

    def _judge(self, is_end: bool = False) -> None:
        before = [finding.name for finding in self.findings[:1]]
        can_judge = self.agent.updates >= LEAST_UPDATES
        self.findings = diagnose(self.measures) if can_judge else []
        if self.findings and (is_end or self.findings[0].name not in before):
            self.agent.show_message(f"Doctor: {self.findings[0]}")
        elif is_end:
            result = "nothing is wrong" if can_judge and self._series else "too little was measured to judge"
            self.agent.show_message(f"Doctor: {result}")
