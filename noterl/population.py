"""Population: many agents with different seeds or hyperparameters, trained by one compiled program."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import backends
from noterl.agent import Agent, BaseAgent
from noterl.backends.on_device import Members
from noterl.callback import Callback
from noterl.envs.functional import new_keys
from noterl.history import History
from noterl.learning import device
from noterl.learning.device_normalization import DeviceNormalizers
from noterl.learning.optimizers import check_without_schedule
from noterl.random import Generators, check_seed, selection_seed
from noterl.training.device_stepping import train_members
from noterl.training.dispatch import CallbackList, call_handlers
from noterl.training.fit import Fit, check_verbose, progress_callbacks
from noterl.utils.checks import check_count, check_int, check_number, check_positive
from noterl.utils.files import user_path
from noterl.utils.interrupts import InterruptGuard

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("reward", "length", "steps", "updates")


class PopulationHistory:
    """The episodes of all members: `history["reward"][3]` is the list of the returns of member 3.

    Attributes:
        members: for each member a dict of lists, with an entry for each finished episode: `reward` (the return),
            `length`, and the member's `steps` and `updates` at the end of the episode.
        stop_reasons: why the last `fit` of each member ended.
    """

    def __init__(self, members: int) -> None:
        self.stop_reasons: list[str | None] = [None] * members
        self.members: list[dict[str, list[Any]]] = [{name: [] for name in COLUMNS} for _ in range(members)]

    def __getitem__(self, name: str) -> list[list[Any]]:
        if name not in COLUMNS:
            raise KeyError(f"{name!r} is not one of {', '.join(COLUMNS)}")
        return [member[name] for member in self.members]

    def __len__(self) -> int:
        return len(self.members)

    def plot(self, what: str = "reward", **options: Any) -> Figure:
        """Plot the mean over members with a band; the options are the same as for `noterl.plotting.compare`."""
        from noterl import plotting

        return plotting.compare(self.members, what, **options)


class _Progress:
    """Records the episodes of all members and shows sums over members, as `fit` shows the episodes of one agent.

    Args:
        population: with a history.
        callbacks: show the progress.
    """

    def __init__(self, population: Population, callbacks: Sequence[Callback]) -> None:
        assert population.history is not None
        self._agents: list[Any] = population._agents  # they have a history while they train
        self._history = population.history
        self._firsts = [len(member["reward"]) for member in self._history.members]
        self._started = perf_counter()
        self._totals: Any = SimpleNamespace(episodes=sum(self._firsts), history=History())
        shown = CallbackList(callbacks)
        shown.set_agent(self._totals)
        self._events = shown.bind()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress inside the context."""
        self._count()
        call_handlers(self._events.on_train_begin, {})
        try:
            yield
        finally:
            call_handlers(self._events.on_train_end, {})

    def update(self) -> None:
        """Record and show the episodes that have ended."""
        self._count()
        for agent, record, first in zip(self._agents, self._history.members, self._firsts, strict=True):
            recorded = len(record["reward"])
            # The record starts with the first `fit`, and the history of a member with this one, in which the record
            # had `first` episodes when it began.
            for name, values in record.items():
                values += agent.history.history[name][recorded - first :]
            for reward in record["reward"][recorded:]:
                self._totals.episodes += 1
                logs = {"reward": reward, "steps": self._totals.steps, "time": perf_counter() - self._started}
                call_handlers(self._events.on_episode_end, self._totals.episodes, logs)
        self._history.stop_reasons = reasons = [agent.history.stop_reason for agent in self._agents]
        self._totals.history.stop_reason = reasons[0] if len(set(reasons)) == 1 else None
        call_handlers(self._events.on_step_end)

    def _count(self) -> None:
        """Set the counts that the callbacks show to the sums over the members."""
        for name in ("steps", "updates", "log_step"):
            setattr(self._totals, name, sum(getattr(agent, name) for agent in self._agents))


class Population:
    """S agents that train together on the device, with different seeds or different hyperparameters.

    A Population needs the JAX backend, a functional environment, and an agent that trains on the device: PPO, A2C, TRPO
    or PQN without normalization. A member makes the same updates as a single agent with the same seed.

    Args:
        agent: the agent that the members are copies of; this agent does not train. Each member starts with the initial
            weights of the member's seed, so the agent must not have trained or changed weights. Members have the
            agent's current hyperparameters, and the learning rates of its `compile`.
        seeds: the number of members, whose seeds count from the agent's seed; or a list of seeds.
        hyperparameters: values that differ by member: a list of S numbers for the name of a hyperparameter, or for
            "learning_rate".

    Raises:
        ValueError: if an argument is not one of the allowed values, or the agent cannot train on the device or has
            trained.

    Attributes:
        agent: the agent of the constructor.
        seeds: the seed of each member.
        history: the record of all `fit` calls; None before the first.
        failed: a dict from each member whose loss or gradient was not finite to the member's number of updates before
            that.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        seeds: int | Sequence[int] = 8,
        hyperparameters: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        if not isinstance(agent, BaseAgent):
            raise ValueError(f"agent must be a noterl.Agent, got {agent!r}")
        obstacle = find_obstacle(agent)
        if obstacle is not None:
            raise ValueError(obstacle)
        self.agent: Agent = agent
        self.seeds: list[int] = _check_seeds(seeds, agent)
        self._check_untrained()
        self.history: PopulationHistory | None = None
        self.failed: dict[int, int] = dict[int, int]()
        self._learner: Any = agent._parts.build()[0]  # traces the program of the members
        self._members: Members | None = None  # makes their calls, once there are environments
        self._num_envs = 0
        self._version = 0  # of the attributes that the program of the members has read
        values = _check_hyperparameters(hyperparameters or {}, agent, len(self.seeds))
        self._agents: list[Agent] = [
            self._make_member(seed, {name: float(numbers[number]) for name, numbers in values.items()})
            for number, seed in enumerate(self.seeds)
        ]

    def __len__(self) -> int:
        return len(self.seeds)

    def _check_untrained(self) -> None:
        """Check that the agent's state is the initial one: the members would continue from a part of another.

        Raises:
            ValueError: if the agent has trained, or the weights were changed, such as by `pretrain` or `restore`.
        """
        steps = self.agent.steps
        updates = self.agent.updates
        if steps or updates:
            raise ValueError(
                f"agent must not have trained, because its members start with initial weights; it has made {steps:,} "
                f"steps and {updates:,} updates: pass a new agent with the same arguments"
            )
        # An agent with initial weights has the ones of a new agent with the same seed.
        initial = self._copy(self.agent.generators.seed).get_weights()
        if not all(np.array_equal(value, initial[name]) for name, value in self.agent.get_weights().items()):
            raise ValueError(
                "agent must have the initial weights of its seed, because its members start with those of their seeds; "
                "they were changed, such as by pretrain, restore or load_weights: pass a new agent"
            )

    @property
    def steps(self) -> int:
        """The largest number of environment steps of a member so far."""
        return max(agent.steps for agent in self._agents)

    def _make_member(self, seed: int, values: Mapping[str, float]) -> Agent:
        """Return a compiled copy of the agent with these values of hyperparameters."""
        member = self._copy(seed)
        member.compile(**self.agent.compile_arguments)
        member._parts.build()
        current = {name: float(each) for name, each in self.agent.hyperparameters.items() if each.schedule is None}
        for name, value in {**current, **values}.items():
            if name == "learning_rate":
                member.set_rule(name, value)
            else:
                member.hyperparameters[name].assign(value)
        return member

    def _copy(self, seed: int) -> Agent:
        config = {**self.agent.get_config(), "env": self.agent.spaces.source, "seed": seed}
        return type(self.agent).from_config(config)

    def fit(
        self,
        *,
        steps: float,
        num_envs: int | None = None,
        callbacks: Callable[[int], Iterable[Any]] | None = None,
        verbose: int | str = "auto",
    ) -> PopulationHistory:
        """Train every member; a second call continues.

        Args:
            steps: environment steps of each member, an int or a float without a fraction.
            num_envs: environments of each member; by default as in the last call, or 1. Another number restarts the
                episodes.
            callbacks: a function of a member's number that returns the callbacks of this member, as for `Agent.fit`:
                `lambda member: [CSVLogger(f"{member}.csv")]`. The callbacks are attached to the member's agent. A
                member that a callback stops does not change any more in this call, and the others train on. Callbacks
                can change hyperparameters and learning rates of the member.
            verbose: as for `Agent.fit`; episodes and steps are counted over all members.

        Returns:
            The record of all calls.

        Raises:
            ValueError: if an argument is not one of the allowed values; if a callback must run on the host, as those
                with `needs_host`, or changes what the compiled program of all members contains.
            KeyboardInterrupt: after Ctrl-C, when the call in progress has ended; a later `fit` continues.

        Warns:
            RuntimeWarning: if a loss or gradient of a member is not finite. The member keeps the weights from before
            that update, and the others train on. The next `fit` trains the member again.
        """
        budget = check_count("steps", steps)
        verbose = check_verbose(verbose)
        num_envs = check_positive("num_envs", num_envs, none=True) or self._num_envs or 1
        lists = self._check_callbacks(callbacks)
        self.history = self.history or PopulationHistory(len(self))
        progress = _Progress(self, progress_callbacks(verbose, None, budget * len(self), 10 * len(self)))
        guard = InterruptGuard()
        with guard.installed(), progress.shown():
            self._train(lists, budget, num_envs, guard, progress)
        return self.history

    def _check_callbacks(self, callbacks: Any) -> list[CallbackList]:
        """Return the callbacks of each member.

        Raises:
            ValueError: if `callbacks` is not a function, or if two members share a callback.
        """
        if callbacks is not None and not callable(callbacks):
            raise ValueError(
                "callbacks must be a function of a member's number that returns the callbacks of this member, because "
                f"members do not share them: write callbacks=lambda member: [...]; got {callbacks!r}"
            )
        lists = [CallbackList(callbacks(number) if callbacks else ()) for number in range(len(self))]
        owners: dict[int, int] = {}
        for number, member_callbacks in enumerate(lists):
            for callback in member_callbacks.callbacks:
                if owners.setdefault(id(callback), number) != number:
                    raise ValueError(
                        f"callbacks: the members {owners[id(callback)]} and {number} have the same {callback!r}: make "
                        "a new one for each member inside of the function"
                    )
        return lists

    def _train(
        self, callbacks: list[CallbackList], steps: int, num_envs: int, guard: InterruptGuard, progress: _Progress
    ) -> None:
        """Train the members, whose loops call the callbacks."""
        options = {"env": None, "episodes": None, "steps": steps, "num_envs": num_envs, "vectorize": False, "info": ()}
        options |= {"strategy": None, "workers": 0, "verbose": 0, "log_every": None, "seed": None}
        pairs = zip(self._agents, callbacks, strict=True)
        fits = [Fit(agent._parts, callbacks=hooks, **options) for agent, hooks in pairs]
        # All arguments are checked before the first member begins.
        for fit in fits:
            fit.parts.session.guard = guard
            fit.check_arguments()
        members = self._open(num_envs)
        begun = [(fit, fit.begin()) for fit in fits]
        for number, fit in enumerate(fits):
            hosted = [callback for callback in fit.callbacks.callbacks if callback.needs_host]
            if hosted:
                raise ValueError(
                    f"callbacks of member {number}: {', '.join(map(repr, hosted))} must act between all updates or "
                    "read rollouts, which members of a Population make in one call on the device: leave it out"
                )
        # Each member's loop stays open until all have ended, and is closed even if another raises an error.
        with ExitStack() as stack:
            for fit in fits:
                stack.enter_context(fit.parts.session.gate.owned())
            loops: list[Any] = [stack.enter_context(fit.loop(budget)) for fit, budget in begun]
            train_members(loops, members, self.agent._reads, after_call=progress.update, on_failure=self._warn)

    def _warn(self, member: int) -> None:
        """Record and warn that a member's loss or gradient is not finite."""
        updates = self._agents[member].updates
        self.failed[member] = updates
        warnings.warn(
            f"a loss or gradient of member {member} (seed {self.seeds[member]}) is not finite: it keeps its weights "
            f"after {updates} updates",
            RuntimeWarning,
            stacklevel=9,  # the caller of fit
        )

    def _open(self, num_envs: int) -> Members:
        """Return what makes the calls of the members in a number of environments; called when a `fit` begins.

        Another number than in the last `fit` makes and compiles another program.
        """
        self._learner.updater.check_constants()
        version = self.agent._reads.check()
        if num_envs != self._num_envs:
            self._learner.attach(self.agent.spaces.source, num_envs)
            # Shorter calls answer Ctrl-C sooner; longer ones have less overhead.
            self._members = self._make_members(num_envs, max(1, len(self) // 8))
            self._version = version
            self._num_envs = num_envs
        if version != self._version:
            raise ValueError(
                "agent: an attribute has changed that the compiled program of its members contains; pass the "
                "changed agent to a new Population, or use hyperparameters="
            )
        assert self._members is not None
        return self._members

    def _make_members(self, num_envs: int, shorter: int = 1) -> Members:
        """Return what makes the calls of the members; a call is shorter than an agent's by the factor `shorter`."""
        self._learner.open(num_envs)
        actor = self.agent._parts.build()[1]
        normalizers = DeviceNormalizers(None, num_envs)
        program = device.make_program(self._learner, actor, self.agent.spaces.source, normalizers, shorter)
        return backends.current().capabilities["device_programs"].make_members(program, len(self))

    def evaluate(self, episodes: int = 10, *, seed: int | None = None) -> dict[str, np.ndarray]:
        """Play whole episodes with every member, without exploration, on the device; training is not affected.

        The call returns when all episodes have ended, and Ctrl-C does not end the call earlier. So every episode must
        end: give an environment without a time limit `max_episode_steps`, see `noterl.envs.functional`.

        Args:
            episodes: episodes of each member; all members start from the same states.
            seed: seed of the episodes; by default the agent's seed.

        Returns:
            `returns` and `lengths` `[S, episodes]`, and `reward_mean` `[S]`.

        Raises:
            ValueError: if an argument is not one of the allowed values.
        """
        check_positive("episodes", episodes)
        check_seed(seed)
        # Before the first `fit`, as many environments as a minibatch needs.
        size = self._learner.schedule.batch_size
        needed = 1 if isinstance(size, str) else math.ceil(size / self._learner.rollout.length)
        members = self._members or self._make_members(needed)
        key = new_keys(Generators(self.agent.generators.seed if seed is None else seed)("evaluation"))
        variables = [agent._parts.learner.variables for agent in self._agents]
        returns, lengths = members.play(variables, key, int(episodes))
        return {"returns": returns, "lengths": lengths, "reward_mean": returns.mean(axis=1, dtype=np.float64)}

    def best(self, episodes: int = 20, *, seed: int | None = None) -> Agent:
        """Return the member with the highest mean return over these episodes as an agent; see `evaluate`.

        By default, the episodes differ from the episodes of `evaluate`, whose result is then not too high for the best
        member.
        """
        seed = selection_seed(self.agent.generators.seed) if seed is None else seed
        return self.member(int(np.argmax(self.evaluate(episodes, seed=seed)["reward_mean"])))

    def member(self, number: int) -> Agent:
        """Return a member as a separate agent, which can be evaluated, saved and trained further.

        Raises:
            ValueError: if there is no member with this number.
        """
        number = check_int("number", number, least=0)
        if number >= len(self):
            raise ValueError(f"number must be from 0 to {len(self) - 1}, got {number!r}")
        # A copy: the member trains on in the population.
        agent = self._make_member(self.seeds[number], {})
        agent.set_state(self._agents[number].get_state())
        return agent

    def save(self, path: str | Path) -> None:
        """Write every member to a folder, as `member-000.noterl` and so on, which `noterl.load` reads.

        Raises:
            OSError: if a file cannot be written.
        """
        folder = user_path(path)
        folder.mkdir(parents=True, exist_ok=True)
        for number, agent in enumerate(self._agents):
            agent.save(folder / f"member-{number:03d}.noterl")


def find_obstacle(agent: Agent) -> str | None:
    """Return why copies of an agent cannot be the members of a population; None if copies can."""
    if agent.state_spec:
        return f"agent: a Population does not support agents with a state_spec yet, got {agent!r}"
    source = agent.spaces.source
    is_plain = source.functions is not None and agent.spaces.normalizers is None
    if not is_plain or not device.rollouts_run_on_device(*agent._parts.build(), source):
        return (
            "agent must train on the device: a PPO, A2C, TRPO or PQN without normalization, replay memory and reward "
            f"model, with a functional environment and the JAX backend; got {agent!r} on {backends.name()}"
        )
    if agent.get_config().get("network") is not None:
        return "agent: the members of a population build their own networks; pass hidden= to the agent"
    return None


def _check_seeds(seeds: Any, agent: Agent) -> list[int]:
    """Return the seeds of the members.

    Raises:
        ValueError: if `seeds` is neither a positive int nor a list of seeds.
    """
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        return [agent.generators.seed + k for k in range(check_positive("seeds", seeds))]
    if isinstance(seeds, str) or not isinstance(seeds, Sequence | np.ndarray) or len(seeds) == 0:
        raise ValueError(f"seeds must be a number of members or a list of seeds, got {seeds!r}")
    for seed in seeds:
        check_seed(seed)
    if any(seed is None for seed in seeds):
        raise ValueError(f"seeds must be ints, got {seeds!r}")
    return [int(seed) for seed in seeds]


def _check_hyperparameters(values: Mapping[str, Any], agent: Agent, members: int) -> dict[str, np.ndarray]:
    """Return the values `[S]` of variables that differ by member, by name.

    Raises:
        ValueError: if a name is unknown or has a schedule, or a value is missing or out of bounds.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"hyperparameters must be a dict of names and lists of {members} numbers, got {values!r}")
    arrays: dict[str, np.ndarray] = {}
    for name, entry in values.items():
        numbers = np.asarray(entry, np.float64)
        if numbers.shape != (members,):
            raise ValueError(f"hyperparameters[{name!r}] must be {members} numbers, one for each member, got {entry!r}")
        if name == "learning_rate":
            for optimizer in agent.optimizers.values():
                check_without_schedule(optimizer)
            for number in numbers:
                check_number("hyperparameters['learning_rate']", float(number), low=0.0)
            arrays[name] = numbers
            continue
        if name not in agent.hyperparameters:
            names = ", ".join(["learning_rate", *agent.hyperparameters])
            raise ValueError(f"hyperparameters has no name {name!r}; choose from {names}")
        variable = agent.hyperparameters[name]
        if variable.schedule is not None:
            raise ValueError(f"hyperparameters[{name!r}] has the schedule {variable.schedule!r} in the agent")
        arrays[name] = np.array([variable._check(float(number), name) for number in numbers])
    return arrays
