"""One trial: training and evaluation in a separate process."""

from __future__ import annotations

import contextlib
import copy
import inspect
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from noterl.callback import Callback, Every
from noterl.types import Logs

if TYPE_CHECKING:
    from noterl.population import Population

_SKIPPED = ("env", "seed", "callbacks", "self")


@dataclass(frozen=True)
class Task:
    """What a trial does.

    Attributes:
        agent: the class of the agent.
        env: the environment, which can be pickled.
        values: arguments of the agent, of `compile` and of `fit`, by name.
        steps: environment steps of each training run; gradient updates with a data set.
        seeds: the seed of each training run.
        evaluations: number of evaluations in a training run, equally spaced; the last one is the result.
        episodes: number of episodes in an evaluation.
        evaluation_seed: the seed of every evaluation.
        weights: path of a file of weights, from which each training run starts; None for new weights.
        dataset: the argument `dataset` of `fit`, for training without the environment; or None.
    """

    agent: type
    env: Any
    values: Mapping[str, Any]
    steps: int
    seeds: Sequence[int]
    evaluations: int
    episodes: int
    evaluation_seed: int
    weights: str | None = None
    dataset: Any = None

    @property
    def unit(self) -> str:
        """What `steps` counts."""
        return "steps" if self.dataset is None else "updates"


class Report(Callback):
    """Evaluate the agent at a fixed frequency, send the mean return, and end training if the answer is "prune".

    Args:
        task: the task of the trial.
        position: the number of the training run.
        pipe: receives `("values", [position], evaluation, [mean return])`; returns "go" or "prune".
    """

    def __init__(self, task: Task, position: int, pipe: Connection) -> None:
        self._task = task
        self._position = position
        self._pipe = pipe
        self.every: Every = Every(max(1, task.steps // task.evaluations), task.unit, at="step")
        self.pruned: bool = False

    def on_due(self, logs: Logs) -> None:
        """Evaluate the agent; the evaluation at the end of training is left to `run`."""
        number = int(self.every.now(self.agent) // self.every.count)
        if number < self._task.evaluations and not self.pruned:
            self.pruned = not report(self.agent, self._task, self._position, number, self._pipe)
            if self.pruned:
                self.agent.stop("the trial was pruned")


def report(agent: Any, task: Task, position: int, number: int, pipe: Connection) -> bool:
    """Evaluate the agent and send the mean return; return whether the trial goes on."""
    value = agent.evaluate(episodes=task.episodes, seed=task.evaluation_seed)["reward_mean"]
    pipe.send(("values", [position], number, [value]))
    return bool(pipe.recv() == "go")


def split(agent: type, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the values that are arguments of the agent, of `compile` and of `fit`.

    Raises:
        ValueError: if a name is not an argument of any.
    """
    groups: tuple[dict[str, Any], ...] = ({}, {}, {})
    functions: tuple[Any, ...] = (agent, agent.compile, agent.fit)  # type: ignore[attr-defined]
    accepted = [[name for name in inspect.signature(callee).parameters if name not in _SKIPPED] for callee in functions]
    for name, value in values.items():
        # In this order, so that a name of several functions goes to the agent.
        part = next((part for part, names in zip(groups, accepted, strict=True) if name in names), None)
        if part is None:
            from noterl.utils.words import explain_name

            known_names = sorted({name for names in accepted for name in names})
            raise ValueError(f"space: {agent.__name__} has no argument {name!r}: {explain_name(name, known_names)}")
        part[name] = value
    return groups[0], groups[1], groups[2]


def run(pipe: Connection, task: Task) -> None:
    """Train and evaluate an agent for each seed; send the results, or the traceback of an error.

    The messages are `("values", positions, evaluation, mean returns)` of one or several training runs, each answered by
    "go" or "prune", and at the end, also after "prune", `("done",)` or `("error", traceback)`.
    """
    try:
        # One compiled program trains all seeds at once, where the agent allows it.
        population = make_population(task)
        if population is not None:
            _train_together(task, population, pipe)
        else:
            for position, seed in enumerate(task.seeds):
                if not _train(task, position, seed, pipe):
                    break
        pipe.send(("done",))
    # The traceback travels as text, because not every error can be pickled.
    except Exception:
        pipe.send(("error", traceback.format_exc()))


def make_population(task: Task) -> Population | None:
    """Return the agents of all seeds as members of a population; None if impossible."""
    from noterl.population import Population, find_obstacle  # imports Keras, which the process of `tune` does not need

    fitted = split(task.agent, task.values)[2]
    # Members of a population have weights of their own seeds, not those of a file.
    if task.weights is not None or task.dataset is not None or not fitted.keys() <= {"num_envs"}:
        return None
    agent = _make_agent(task, task.seeds[0])
    if find_obstacle(agent) is not None:
        agent.close()
        return None
    return Population(agent, seeds=task.seeds)


def _make_agent(task: Task, seed: int) -> Any:
    """Return a compiled agent with copies of the task's values, with the weights of the file if there is one."""
    built, compiled, _ = split(task.agent, copy.deepcopy(task.values))
    agent = task.agent(task.env, seed=seed, **built)
    agent.compile(**compiled)
    if task.weights is not None:
        agent.load_weights(task.weights)
    return agent


def _train_together(task: Task, population: Population, pipe: Connection) -> None:
    """Train the members, and report evaluations after equal parts of the steps, until the trial is pruned."""
    for number in range(1, task.evaluations + 1):
        missing = task.steps * number // task.evaluations - population.steps
        if missing:
            population.fit(steps=missing, verbose=0, **split(task.agent, task.values)[2])
        if population.failed:
            raise ValueError(f"a loss or gradient is not finite after these updates of a seed: {population.failed}")
        values = population.evaluate(task.episodes, seed=task.evaluation_seed)["reward_mean"].tolist()
        pipe.send(("values", list(range(len(population))), number, values))
        if pipe.recv() != "go":
            return


def _train(task: Task, position: int, seed: int, pipe: Connection) -> bool:
    """Train an agent with one seed and report the evaluations; return whether the trial goes on."""
    with contextlib.closing(_make_agent(task, seed)) as agent:
        callback = Report(task, position, pipe)
        fitted = split(task.agent, task.values)[2]
        data = {} if task.dataset is None else {"dataset": task.dataset}
        agent.fit(callbacks=[callback], **{task.unit: task.steps, "verbose": 0, **data, **fitted})
        return not callback.pruned and report(agent, task, position, task.evaluations, pipe)
