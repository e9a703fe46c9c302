"""Population: many agents with different seeds or hyperparameters, trained by one compiled program."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import backends, networks
from noterl.agent import Agent, BaseAgent
from noterl.backends.on_device import DeviceProgram, Members, Report
from noterl.collect.device import DeviceLanes
from noterl.envs.functional import new_keys
from noterl.learning import device
from noterl.random import Generators, check_seed, selection_seed
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
            `length`, and the member's `steps` and `updates` at its end.
    """

    def __init__(self, members: int) -> None:
        self.members: list[dict[str, list[Any]]] = [{name: [] for name in COLUMNS} for _ in range(members)]

    def __getitem__(self, name: str) -> list[list[Any]]:
        if name not in COLUMNS:
            raise KeyError(f"{name!r} is not one of {', '.join(COLUMNS)}")
        return [member[name] for member in self.members]

    def __len__(self) -> int:
        return len(self.members)

    def plot(self, what: str = "reward", **options: Any) -> Figure:
        """Plot the mean over members with a band; the options are those of `noterl.plotting.compare`."""
        from noterl import plotting

        return plotting.compare(self.members, what, **options)


class Population:
    """S agents that train together on the device, with different seeds or different hyperparameters.

    It needs the JAX backend, a functional environment, and an agent that trains on the device: PPO, A2C or TRPO
    without normalization. A member makes the same updates as a single agent with its seed.

    Args:
        agent: the agent that the members are copies of; it does not train itself. Each member starts with the initial
            weights of its seed, so the agent must not have trained or changed its weights.
        seeds: the number of members, whose seeds count from that of the agent; or the list of their seeds.
        hyperparameters: values that differ by member: a list of S numbers for the name of a hyperparameter, or for
            "learning_rate".

    Raises:
        ValueError: if an argument is not one of the allowed values, or the agent cannot train on the device or has
            trained.

    Attributes:
        agent: the agent of the constructor.
        seeds: the seed of each member.
        history: the record of all `fit` calls; None before the first.
        steps: environment steps of each member so far.
        failed: a dict from each member whose loss or gradient was not finite to its number of updates before that.
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
        self.steps: int = 0
        self.failed: dict[int, int] = dict[int, int]()
        self._updates = np.zeros(len(self.seeds), np.int64)
        self._learner: Any = agent._parts.build()[0]
        self._members: Members | None = None  # the members on the device, once there are environments
        self._position, self._num_envs = 0, 0
        self._version = 0  # of the attributes that the program of the members has read
        self._generators = [Generators(seed) for seed in self.seeds]
        self._states = self._initial_states(_check_hyperparameters(hyperparameters or {}, agent, len(self.seeds)))

    def __len__(self) -> int:
        return len(self.seeds)

    def _check_untrained(self) -> None:
        """Check that the agent's state is the initial one: the members would continue from only a part of it.

        Raises:
            ValueError: if the agent has trained, or its weights were changed, such as by `pretrain` or `restore`.
        """
        steps, updates = self.agent.steps, self.agent.updates
        if steps or updates:
            raise ValueError(
                f"agent must not have trained, because its members start with initial weights; it has made {steps:,} "
                f"steps and {updates:,} updates: pass a new agent with the same arguments"
            )
        initial = self._copy(self.agent.generators.seed).get_weights()
        if not all(np.array_equal(value, initial[name]) for name, value in self.agent.get_weights().items()):
            raise ValueError(
                "agent must have the initial weights of its seed, because its members start with those of their seeds; "
                "they were changed, such as by pretrain, restore or load_weights: pass a new agent"
            )

    def _initial_states(self, values: dict[int, np.ndarray]) -> list[list[np.ndarray]]:
        """Return the variables of each member; `values` holds those of hyperparameters `[S]`, by id."""
        shared = [backends.current().fetch(variable) for variable in self._learner.variables]
        states = []
        for number, seed in enumerate(self.seeds):
            own = self._variables(self._copy(seed))
            for position, variable in enumerate(self._learner.variables):
                if id(variable) in values:
                    own[position] = values[id(variable)][number]
            states.append([own.get(position, value) for position, value in enumerate(shared)])
        return states

    def _copy(self, seed: int) -> Agent:
        config = {**self.agent.get_config(), "env": self.agent.spaces.source, "seed": seed}
        agent: Agent = type(self.agent).from_config(config)
        return agent

    def _variables(self, agent: Agent) -> dict[int, np.ndarray]:
        """Return the initial network variables of a copy, by their positions in the learner's list."""
        positions = {id(variable): position for position, variable in enumerate(self._learner.variables)}
        pairs = zip(self.agent.networks().values(), agent.networks().values(), strict=True)
        fetch = backends.current().fetch
        return {
            positions[id(ours)]: fetch(theirs)
            for one, other in pairs
            for ours, theirs in zip(networks.variables(one), networks.variables(other), strict=True)
        }

    def fit(self, *, steps: float, num_envs: int | None = None) -> PopulationHistory:
        """Train every member; a second call continues.

        Args:
            steps: environment steps of each member, an int or a float without a fraction.
            num_envs: environments of each member; by default that of the last call, or 1. Another number restarts the
                episodes.

        Returns:
            The record of all calls.

        Raises:
            ValueError: if an argument is not one of the allowed values.
            KeyboardInterrupt: after Ctrl-C, when the call in progress has ended; a later `fit` continues.

        Warns:
            RuntimeWarning: if a loss or gradient of a member is not finite. It keeps its weights from before that
                rollout until the call on the device ends, and the others train on. The next call trains it again.
        """
        budget = check_count("steps", steps)
        self._open(check_positive("num_envs", num_envs, none=True) or self._num_envs or 1)
        if self.history is None:
            self.history = PopulationHistory(len(self))
        last, guard = self.steps + budget, InterruptGuard()
        schedules = device.scheduled(self._learner)
        with guard.installed():
            while self.steps < last:
                self._call(last, schedules)
                guard.check()
        return self.history

    def _open(self, num_envs: int) -> None:
        """Make the program, and start the environments unless they continue."""
        self._learner.updater.check_constants()
        version = self.agent._reads.check()
        if num_envs == self._num_envs:
            if version != self._version:
                raise ValueError(
                    "agent: an attribute has changed that the compiled program of its members contains; pass the "
                    "changed agent to a new Population, or use hyperparameters="
                )
            return
        self._version = version
        self._learner.attach(self.agent.spaces.source, num_envs)
        self._learner.open(num_envs)
        # Shorter calls answer Ctrl-C sooner; longer ones have less overhead.
        program = device.make_program(self._learner, self.agent.spaces.source, max(1, len(self) // 8))
        if self._members is not None:
            self._states = [self._members.state(number) for number in range(len(self))]
        keys = np.stack([new_keys(each("environment/device")) for each in self._generators])
        self._members = backends.current().capabilities["device_programs"].make_members(program, self._states, keys)
        self._num_envs, self._position = num_envs, 0

    def _untrained(self) -> Members:
        """Return the members before their first `fit`, with as many environments as a minibatch needs."""
        size = self._learner.schedule.batch_size
        self._learner.open(1 if isinstance(size, str) else math.ceil(size / self._learner.rollout.length))
        program = device.make_program(self._learner, self.agent.spaces.source)
        keys = np.zeros((len(self), 2), np.uint32)
        return backends.current().capabilities["device_programs"].make_members(program, self._states, keys)

    def _call(self, last: int, schedules: list[Any]) -> None:
        """Make one call on the device and record its episodes."""
        assert self._members is not None
        program = self._members.program
        begin = self._position
        end = min(program.rollouts * program.size, begin + last - self.steps)
        first = self.steps - begin
        values = device.scheduled_values(schedules, [first + program.size * (k + 1) for k in range(program.rollouts)])
        reports = self._members.run(begin, end, values)
        self.steps, self._position = first + end, end % program.size
        self._record(program, reports, first, end // program.size)

    def _record(self, program: DeviceProgram, reports: list[Report], first: int, learned: int) -> None:
        """Add the episodes of a call to the history."""
        assert self.history is not None
        for member, (lists, report) in enumerate(zip(self.history.members, reports, strict=True)):
            ends = np.flatnonzero(report.ended)
            returns, compensation = (
                each.reshape(-1)[ends].astype(np.float64) for each in (report.returns, report.compensation)
            )
            applied = report.applied[:learned].astype(np.int64)
            before = self._updates[member] + np.concatenate([[0], np.cumsum(applied)])
            lists["reward"] += (returns + compensation).tolist()
            lists["length"] += report.lengths.reshape(-1)[ends].tolist()
            lists["steps"] += (first + ends + 1).tolist()
            lists["updates"] += before[(ends + 1) // program.size].tolist()
            self._updates[member] = before[-1]
            short = (applied < program.updates) & ~report.stopped[:learned]
            if short.any() and member not in self.failed:
                self.failed[member] = int(before[-1])
                warnings.warn(
                    f"a loss or gradient of member {member} (seed {self.seeds[member]}) is not finite: it keeps its "
                    f"weights after {before[-1]} updates",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def evaluate(self, episodes: int = 10, *, seed: int | None = None) -> dict[str, np.ndarray]:
        """Play whole episodes with every member, without exploration, on the device; training is not affected.

        The call returns when all episodes have ended, and Ctrl-C does not end it earlier. So every episode must end:
        give an environment without a time limit `max_episode_steps`, see `noterl.envs.functional`.

        Args:
            episodes: episodes of each member; they start alike for all members.
            seed: seed of the episodes; by default that of the agent.

        Returns:
            `returns` and `lengths` `[S, episodes]`, and `reward_mean` `[S]`.

        Raises:
            ValueError: if an argument is not one of the allowed values.
        """
        check_positive("episodes", episodes)
        check_seed(seed)
        members = self._members or self._untrained()
        key = new_keys(Generators(self.agent.generators.seed if seed is None else seed)("evaluation"))
        returns, lengths = members.play(key, int(episodes))
        return {"returns": returns, "lengths": lengths, "reward_mean": returns.mean(axis=1, dtype=np.float64)}

    def best(self, episodes: int = 20, *, seed: int | None = None) -> Agent:
        """Return the member with the highest mean return over these episodes as an agent; see `evaluate`.

        By default, the episodes are not those of `evaluate`, whose result is then not too high for the best member.
        """
        seed = selection_seed(self.agent.generators.seed) if seed is None else seed
        return self.member(int(np.argmax(self.evaluate(episodes, seed=seed)["reward_mean"])))

    def member(self, number: int) -> Agent:
        """Return a member as an agent of its own, which can be evaluated, saved and trained further.

        Raises:
            ValueError: if there is no member with this number.
        """
        number = check_int("number", number, least=0)
        if number >= len(self):
            raise ValueError(f"number must be from 0 to {len(self) - 1}, got {number!r}")
        agent = self._copy(self.seeds[number])
        agent.compile(**self.agent.compile_arguments)
        learner, actor = agent._parts.build()
        hyperparameters = {id(each): each for each in agent.hyperparameters.values()}
        state = self._states[number] if self._members is None else self._members.state(number)
        for variable, value in zip(learner.variables, state, strict=True):
            if id(variable) in hyperparameters:
                hyperparameters[id(variable)].restore(float(value))
            else:
                variable.assign(value)
        actor.mark_stale()
        episodes = 0 if self.history is None else len(self.history.members[number]["reward"])
        counters = agent._parts.counters
        counters.steps, counters.updates = self.steps, int(self._updates[number])
        counters.episodes = counters.episodes_begun = episodes
        agent.generators.set_state(self._generators[number].get_state())
        if self._members is not None:
            lanes = DeviceLanes(agent.spaces.source, self._num_envs, agent.generators)
            lanes.carry, lanes.position = self._members.carry(number), self._position
            agent._parts.session.restore(lanes.get_state(), {})
        return agent

    def save(self, path: str | Path) -> None:
        """Write every member to a folder, as `member-000.noterl` and so on, which `noterl.load` reads.

        Raises:
            OSError: if a file cannot be written.
        """
        folder = user_path(path)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(len(self)):
            agent = self.member(number)
            agent.save(folder / f"member-{number:03d}.noterl")
            agent.close()


def find_obstacle(agent: Agent) -> str | None:
    """Return why copies of an agent cannot be the members of a population; None if they can."""
    if agent.state_spec:
        return f"agent: a Population does not support agents with a state_spec yet, got {agent!r}"
    source = agent.spaces.source
    if source.functions is None or not device.rollouts_run_on_device(agent._parts.build()[0], source):
        return (
            "agent must train on the device: a PPO, A2C or TRPO without normalization, replay memory and reward model, "
            f"with a functional environment and the JAX backend; got {agent!r} on {backends.name()}"
        )
    if agent.get_config().get("network") is not None:
        return "agent: the members of a population build their own networks; pass hidden= to the agent"
    return None


def _check_seeds(seeds: Any, agent: Agent) -> list[int]:
    """Return the seeds of the members.

    Raises:
        ValueError: if they are neither a positive int nor a list of seeds.
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


def _check_hyperparameters(values: Mapping[str, Any], agent: Agent, members: int) -> dict[int, np.ndarray]:
    """Return the values `[S]` of variables that differ by member, by the id of the variable.

    Raises:
        ValueError: if a name is unknown or has a schedule, or a value is missing or out of bounds.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"hyperparameters must be a dict of names and lists of {members} numbers, got {values!r}")
    found: dict[int, np.ndarray] = {}
    for name, each in values.items():
        numbers = np.asarray(each, np.float64)
        if numbers.shape != (members,):
            raise ValueError(f"hyperparameters[{name!r}] must be {members} numbers, one for each member, got {each!r}")
        if name == "learning_rate":
            device.check_learning_rate(agent.optimizers)
            for number in numbers:
                check_number("hyperparameters['learning_rate']", float(number), low=0.0)
            for optimizer in agent.optimizers.values():
                found[id(optimizer._learning_rate)] = numbers.astype(np.float32)
            continue
        if name not in agent.hyperparameters:
            known = ", ".join(["learning_rate", *agent.hyperparameters])
            raise ValueError(f"hyperparameters has no name {name!r}; choose from {known}")
        variable = agent.hyperparameters[name]
        if variable.schedule is not None:
            raise ValueError(f"hyperparameters[{name!r}] has the schedule {variable.schedule!r} in the agent")
        found[id(variable)] = np.array([variable._check(float(number), name) for number in numbers], np.float32)
    return found
