"""The settings that `compile` decides: the algorithm's defaults, replaced by the user's arguments."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from noterl import policies
from noterl.algorithm import Algorithm, Defaults, bind_head, moves_target
from noterl.backends.reads import frozen
from noterl.explorer import Explorer
from noterl.heads import Head
from noterl.learning import optimizers
from noterl.learning.dry_run import check_networks, sequence_spec, start_of
from noterl.learning.learner import Learner
from noterl.learning.replay_learner import ReplayLearner
from noterl.learning.reward_model import GAIL, Discriminator
from noterl.learning.rollout_learner import ReplayedRolloutLearner, RolloutLearner
from noterl.learning.schedule import UpdateSchedule
from noterl.learning.sequence_learner import SequenceLearner
from noterl.learning.update import DISTRIBUTIONS
from noterl.networks import PRECISIONS, NetworkDescription
from noterl.noise import ColoredNoise, NoiseProcess
from noterl.policies import Policy
from noterl.random import construction
from noterl.replay import Replay, Triplets
from noterl.replay.replay import default_capacity
from noterl.schedules import has_ended
from noterl.utils.checks import check_int, check_int_or_word, check_word, whole

# The agent that first used a policy or noise. It alone anneals it and draws from its generator.
_users: weakref.WeakKeyDictionary[Explorer, weakref.ref[Algorithm]] = weakref.WeakKeyDictionary()


class Settings:
    """The settings of a compiled agent; each `Agent.compile` makes a new object.

    Args:
        algorithm: the agent, with its defaults and declarations.
        head: the agent's head, bound to the action space.
        arguments: the arguments of `compile`, by name.

    Raises:
        ValueError: if an argument is not one of the allowed values.

    Attributes:
        arguments: the arguments of `compile`, with a `Policy` instead of a name and a `Replay` instead of a capacity.
        worker_explorers: the policies or noises of worker processes; empty unless `compile` received a list.
        policy, noise, replay, schedule, reward_model, jit_compile, precision, steps_per_execution, optimizers: what is
            used.
    """

    def __init__(self, algorithm: Algorithm, head: Head, arguments: dict[str, Any]) -> None:
        _check_declared(algorithm)
        defaults = algorithm.defaults()
        arguments = dict(arguments)
        if "policy" in arguments:
            arguments["policy"] = _replace_names(arguments["policy"])
        capacity = whole(arguments.get("replay"))
        if isinstance(capacity, int | np.integer) and not isinstance(capacity, bool) and capacity > 0:
            arguments["replay"] = _replay_of(int(capacity), defaults, algorithm, "reward_model" in arguments)
        self.arguments = arguments
        self.policy: Policy | None
        self.noise: NoiseProcess | None
        self.worker_explorers: Sequence[Any]
        self.schedule: UpdateSchedule
        self.policy, self.noise, self.worker_explorers = _exploration_of(arguments, defaults, head, algorithm)
        if algorithm.memory != "replay" and head.samples and self.policy is not None:
            raise ValueError(
                f"policy is not supported for an agent that learns from rollouts: {type(algorithm).__name__} needs the "
                f"log-probabilities of its actions, so its head {type(head).__name__} samples them; got {self.policy!r}"
            )
        self.replay: Replay | None = arguments.get("replay")
        if self.replay is not None and not isinstance(self.replay, Replay):
            raise ValueError(f"replay must be a noterl.Replay, or its capacity, got {self.replay!r}")
        if self.replay is not None and self.replay.relabel is not None and algorithm.searches:
            raise ValueError(
                f"relabel must be None for {type(algorithm).__name__}: the stored results of a search are those of the "
                f"episode's own goal; got {self.replay.relabel!r}"
            )
        if self.replay is None and algorithm.memory != "rollout":  # which needs no replay memory
            self.replay = _default_replay(defaults, algorithm, "reward_model" in arguments)
        scheduled = {name: arguments.get(name, getattr(defaults, name)) for name in _SCHEDULED}
        if algorithm.memory == "replay":
            assert self.replay is not None
            self.schedule = _schedule_of_replay(arguments, scheduled, defaults.update_every, algorithm, self.replay)
        else:
            self.schedule = _schedule_of_rollouts(arguments, scheduled, algorithm)
        if algorithm.state_spec and self.replay is not None:
            _check_replay_of_state(self.replay, algorithm, self.schedule)
        self.reward_model: GAIL | None = _check_reward_model(arguments.get("reward_model"), algorithm, self.replay)
        self.jit_compile: Any = arguments.get("jit_compile", "auto")
        if not isinstance(self.jit_compile, bool | str) or self.jit_compile not in ("auto", True, False):
            raise ValueError(f"jit_compile must be 'auto', True or False, got {self.jit_compile!r}")
        self.precision: str = check_word("precision", arguments.get("precision", "float32"), PRECISIONS)
        size = arguments.get("steps_per_execution", "auto")
        self.steps_per_execution: int | str = check_int_or_word("steps_per_execution", size, "auto")
        self.schedule.check_sampled("steps_per_execution", self.steps_per_execution)
        self.optimizers: dict[str, Any] = optimizers.resolve(
            arguments.get("optimizer"), algorithm.optimizer_names, defaults.learning_rate, defaults.optimizer
        )

    def changes_since(self, other: Settings) -> str:
        """Return the arguments that differ from the arguments of an earlier `compile`, as text, or an empty text."""
        names = dict.fromkeys([*other.arguments, *self.arguments])
        return ", ".join(
            f"{name}={self.arguments[name]!r:.60}" if name in self.arguments else f"{name} to its default"
            for name in names
            if self.arguments.get(name) is not other.arguments.get(name)
            and frozen(self.arguments.get(name)) != frozen(other.arguments.get(name))
            and (name != "replay" or self.replay is not other.replay)
        )

    def rate_schedules(self) -> dict[str, Callable[[int], float]]:
        """Return the schedules of learning rates, by texts that name the schedules."""
        schedules = {name: optimizers.schedule_of(optimizer) for name, optimizer in self.optimizers.items()}
        return {f"learning_rate of {name!r}, {rate!r},": rate for name, rate in schedules.items() if rate is not None}

    def ended_schedules(self, step: int) -> list[str]:
        """Return the schedules that change no more after this environment step, as texts with the last values."""
        schedules = self.rate_schedules()
        epsilon: Callable[[int], float] | None = getattr(self.policy, "epsilon", None)
        if epsilon is not None:
            schedules[f"epsilon of {self.policy!r}"] = epsilon
        for explorer in filter(None, (self.policy, self.noise)):
            schedules |= {f"{name}, {value!r},": value for name, value in explorer.schedules.items() if name != "eps"}
        return [f"{text} is {value(step):g}" for text, value in schedules.items() if has_ended(value, step)]

    def make_learner(self, algorithm: Algorithm) -> Learner:
        """Return the learner for these settings, and make the agent the owner of the replay memory.

        Raises:
            ValueError: if the replay memory does not fit the agent, or belongs to another one.
        """
        settings: dict[str, Any] = {
            "schedule": self.schedule,
            "optimizers": self.optimizers,
            "jit_compile": self.jit_compile,
            "precision": self.precision,
            "steps_per_execution": self.steps_per_execution,
            "reward_model": None if self.reward_model is None else Discriminator(self.reward_model, algorithm),
        }
        if algorithm.memory == "rollout":
            size = self.arguments.get("batch_size", 0)
            settings["least_rows"] = 0 if isinstance(size, str) else int(size)
        if self.replay is None:
            learner = RolloutLearner(algorithm, **settings)
        else:
            learner = _REPLAYING[algorithm.memory](algorithm, replay=self.replay, **settings)
            # After the learner's checks, so that a refused memory has no owner.
            source = algorithm.spaces.source
            self.replay.set_owner(algorithm, source.observation_space, source.action_space)
        return learner


def _check_declared(algorithm: Algorithm) -> None:
    """Check the declarations of the agent's class.

    Raises:
        ValueError: if a declaration is not allowed.
    """
    name = type(algorithm).__name__
    names = algorithm.optimizer_names
    spec = algorithm.random_spec
    are_words = isinstance(names, tuple | list) and all(isinstance(word, str) for word in names)
    if not are_words or not names or len(set(names)) < len(names):
        raise ValueError(
            f'optimizer_names of {name} must be different names such as ("actor", "critic"), got {names!r}'
        )
    owner = next(kind for kind in type(algorithm).__mro__ if "update" in vars(kind))
    is_own = owner.__module__.split(".")[:2] == ["noterl", "agents"] and getattr(owner, "loss", None) is Algorithm.loss
    if is_own and type(algorithm).loss is not Algorithm.loss:
        raise ValueError(f"loss of {name} is never called by the update of {owner.__name__}: override update instead")
    if len(names) > 1 and type(algorithm).update is Algorithm.update:
        raise ValueError(
            f"optimizer_names of {name} must be one name unless {name} defines update: the default update uses only "
            f"the first, got {names!r}"
        )
    if algorithm.extra_spec and algorithm.multi_agent:
        raise ValueError(f"extra_spec of {name} is not supported for several agents, got {algorithm.extra_spec!r}")
    _check_state_spec(algorithm)
    if not _is_spec(algorithm.extra_spec):
        raise ValueError(f"extra_spec of {name} must be a dict of name -> (shape, dtype), got {algorithm.extra_spec!r}")
    if not _is_spec(spec) or any(distribution not in DISTRIBUTIONS for _, distribution in spec.values()):
        raise ValueError(
            f"random_spec of {name} must be a dict of name -> (shape, distribution), with the distribution "
            f"{' or '.join(DISTRIBUTIONS)}, got {spec!r}"
        )
    period = check_int(f"update_period of {name}", algorithm.update_period)
    if period % check_int(f"target_period of {name}", algorithm.target_period):
        raise ValueError(
            f"target_period of {name} must be an int that divides update_period, {period}, got "
            f"{algorithm.target_period!r}"
        )
    if algorithm.memory != "replay" and period != 1:
        raise ValueError(f"update_period of {name} must be 1, because it learns from rollouts, got {period!r}")
    if algorithm.memory == "rollout" and spec:
        raise ValueError(f"random_spec of {name} must be empty, because it learns from rollouts, got {spec!r}")


# `batch.extra` of agents with a state holds the state under these names.
_NAMES_OF_STATE = ("state", "learner_state", "starts")


def _check_state_spec(algorithm: Algorithm) -> None:
    """Check the declaration `state_spec`.

    Raises:
        ValueError: if `state_spec` or `initial_state` is malformed, the agent cannot have a state, or `extra_spec` uses
            a name of the state.
    """
    name = type(algorithm).__name__
    if not start_of(algorithm):
        if algorithm.learner_state_spec:
            raise ValueError(f"learner_state_spec of {name} needs a state_spec, the state of the policy, beside it")
        return
    if algorithm.multi_agent or algorithm.searches:
        reason = "several agents" if algorithm.multi_agent else "an agent that searches"
        raise ValueError(f"state_spec of {name} is not supported for {reason}, got {algorithm.state_spec!r}")
    reserved = [field for field in algorithm.extra_spec if field in _NAMES_OF_STATE]
    if reserved:
        raise ValueError(f"extra_spec of {name} must not use the names of the state, got {', '.join(reserved)}")


def _check_replay_of_state(replay: Replay, algorithm: Algorithm, schedule: UpdateSchedule) -> None:
    """Raise a ValueError if a replay memory does not support an agent with a state."""
    if algorithm.memory != "replay":
        raise ValueError(
            f"replay is not supported for an agent with a state_spec that learns from rollouts, got {replay!r}"
        )
    spec = sequence_spec(algorithm)
    size = schedule.batch_size
    most = spec.count(replay.capacity)
    if isinstance(size, int) and size > most:
        raise ValueError(
            f"batch_size must be at most the number of sequences in the replay memory, {most}, got {size}: an agent "
            f"with a state learns from sequences of {spec.length} steps"
        )
    if replay.on_device or replay.relabel:
        argument = "on_device" if replay.on_device else "relabel"
        raise ValueError(f"{argument} is not supported for an agent with a state_spec, got {replay!r}")


def _is_spec(value: Any) -> bool:
    """Return whether a value is a dict of name -> (shape, anything)."""
    return isinstance(value, Mapping) and all(
        isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], tuple) for entry in value.values()
    )


# The learners with a replay memory, by the agent's kind of memory.
_REPLAYING: dict[str, Any] = {"replay": ReplayLearner, "rollout": ReplayedRolloutLearner, "sequences": SequenceLearner}

# `compile` warns above this number of gradient updates per environment step.
MANY_UPDATES_PER_STEP = 4
# The sequences of a batch by default.
SEQUENCES = 32
_SCHEDULED = ("batch_size", "learning_starts", "update_every", "updates", "target_update", "target_unit")


def _schedule_of_replay(
    arguments: dict[str, Any], scheduled: dict[str, Any], default_every: int | str, algorithm: Algorithm, replay: Replay
) -> UpdateSchedule:
    """Return the schedule of updates from a replay memory.

    Args:
        arguments: of `compile`.
        scheduled: the arguments of the schedule, with the defaults.
        default_every: the default of `update_every`.
        algorithm: the agent.
        replay: the agent's memory.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """
    if algorithm.state_spec and "batch_size" not in arguments:  # which counts sequences
        most = max(1, min(SEQUENCES, sequence_spec(algorithm).count(replay.capacity)))
        scheduled["batch_size"] = 1 << (most.bit_length() - 1)  # a power of two, which replicas can share
    schedule = UpdateSchedule(**scheduled)
    if arguments.get("target_update") is not None and not moves_target(algorithm):
        raise ValueError(
            f"target_update must be None, because {type(algorithm).__name__} defines no update_target(), got "
            f"{arguments['target_update']!r}"
        )
    if "updates" not in arguments:
        schedule.keep_ratio(default_every)
    _warn_of_many_updates(schedule)
    if isinstance(schedule.batch_size, str):
        raise ValueError("batch_size must be an int for an agent that learns from a replay memory, got 'rollout'")
    if schedule.batch_size > replay.most_sampleable:
        frames = ", less the transitions whose stack of frames is not whole" if replay.stacks_frames else ""
        raise ValueError(
            f"batch_size must be at most the capacity of the replay memory{frames}, {replay.most_sampleable}, "
            f"got {schedule.batch_size}"
        )
    return schedule


def _schedule_of_rollouts(arguments: dict[str, Any], scheduled: dict[str, Any], algorithm: Algorithm) -> UpdateSchedule:
    """Return the schedule of updates on each complete rollout; see `_schedule_of_replay` for the arguments.

    Raises:
        ValueError: if an argument is not supported.
    """
    if algorithm.memory == "sequences":
        # Only the target can be set. The batch size may be named as "rollout", which it is.
        refused = [name for name in _SCHEDULED[:4] if (name, arguments.get(name)) != ("batch_size", "rollout")]
        reason = (
            f"{type(algorithm).__name__}, which learns from whole rollouts and from as many stored sequences at a "
            "time: use rollout_steps, replay_ratio and replay_starts"
        )
        scheduled["batch_size"] = "rollout"
    else:
        # Of the schedule, only the batch size can be set.
        refused = [*_SCHEDULED[1:], *([] if algorithm.supports_replay else ["replay"])]
        reason = (
            "an agent that learns from rollouts: it learns from each complete rollout in `epochs` passes and then "
            "discards it (a class with `supports_replay` accepts a replay memory)"
        )
        scheduled.update(target_update=None, target_unit="steps")
    for name in refused:
        if name in arguments:
            raise ValueError(f"{name} is not supported for {reason}; got {arguments[name]!r}")
    # The learner makes the updates after each complete rollout, so this schedule only holds the other settings.
    return UpdateSchedule(**{**scheduled, "learning_starts": 0, "update_every": 1, "updates": 1})


def _replay_of(capacity: int, defaults: Defaults, algorithm: Algorithm, learns_rewards: bool) -> Replay:
    """Return the agent's default memory, but of this capacity."""
    if algorithm.memory == "rollout":  # it has none by default
        return Replay(capacity)
    n_step = 1 if learns_rewards or algorithm.memory == "sequences" else defaults.n_step
    return Replay(capacity, n_step=n_step, frame_stack=_frame_stack(algorithm), sampler=defaults.sampler)


def _frame_stack(algorithm: Algorithm) -> int | None:
    """Return how many frames the memory stacks, if the environment can return single ones."""
    maker = algorithm.spaces.source.maker
    return None if maker is None else maker.frame_stack


def _default_replay(defaults: Defaults, algorithm: Algorithm, learns_rewards: bool) -> Replay:
    """Return the agent's default memory; warn if the memory is smaller because it must fit in this machine's RAM."""
    source = algorithm.spaces.source
    capacity = defaults.capacity
    stack = _frame_stack(algorithm)
    fitting = default_capacity(capacity, source.observation_space, source.action_space, frame_stack=stack)
    if fitting < capacity:
        warnings.warn(
            f"the default memory of {type(algorithm).__name__}, {capacity:,} transitions of these spaces, would take "
            f"more than half of this machine's memory; the agent stores {fitting:,} instead. To choose the number "
            f"yourself: compile(replay=noterl.Replay({fitting:_}{'' if stack is None else f', frame_stack={stack}'}))",
            stacklevel=2,
        )
    return _replay_of(fitting, defaults, algorithm, learns_rewards)


def _warn_of_many_updates(schedule: UpdateSchedule) -> None:
    """Warn if there are more gradient updates per environment step than `MANY_UPDATES_PER_STEP`."""
    ratio = schedule.updates_per_step
    if ratio is not None and ratio > MANY_UPDATES_PER_STEP:
        warnings.warn(
            f"updates: {schedule.updates} every {schedule.update_every} steps are {ratio:.3g} per environment step. "
            f"Above {MANY_UPDATES_PER_STEP}, training is slow and often unstable: reduce updates or raise update_every",
            RuntimeWarning,
            stacklevel=7,
        )


def _check_reward_model(model: Any, algorithm: Algorithm, replay: Replay | None) -> GAIL | None:
    """Return the reward model of `compile`.

    Raises:
        ValueError: if `model` is not a reward model, or the agent or the memory cannot use one.
    """
    if model is None:
        return None
    if not isinstance(model, GAIL):
        raise ValueError(f"reward_model must be a noterl.imitation.GAIL, got {model!r}")
    if algorithm.state_spec:
        raise ValueError(f"reward_model is not supported for an agent with a state_spec, got {model!r}")
    if algorithm.multi_agent:
        raise ValueError(f"reward_model is for agents that act alone, but {type(algorithm).__name__} has several")
    if algorithm.memory == "sequences":
        raise ValueError(f"reward_model is not supported for {type(algorithm).__name__}, which learns from sequences")
    if algorithm.searches:
        raise ValueError(
            f"reward_model is not supported for {type(algorithm).__name__}, whose search adds up the environment's "
            "rewards: use reward_model=None"
        )
    if replay is not None and (replay.n_step > 1 or isinstance(replay.relabel, Triplets)):
        raise ValueError(
            "reward_model needs a replay memory of single steps, because it rewards one action: use n_step=1 and no "
            f"Triplets, got {replay!r}"
        )
    normalizers = algorithm.spaces.normalizers
    if normalizers is not None and normalizers.reward is not None and not model.environment_weight:
        raise ValueError(
            "normalize_reward must be False with reward_model=GAIL(...), which replaces the environment's rewards; "
            "with GAIL(environment_weight=) it adds the normalized ones"
        )
    return model


def _replace_names(policy: Any) -> Any:
    """Return the argument `policy` of `compile` with policies instead of names."""
    if isinstance(policy, list | tuple):
        return [_replace_names(entry) for entry in policy]
    return policies.get(policy) if isinstance(policy, str) else policy


def _exploration_of(
    arguments: Mapping[str, Any], defaults: Defaults, head: Head, algorithm: Algorithm
) -> tuple[Any, Any, Sequence[Any]]:
    """Return the policy, the noise, and the workers' explorers, which are empty unless `compile` received a list."""
    values = {name: arguments.get(name, getattr(defaults, name)) for name in ("policy", "noise")}
    of_policy = _explorers("policy", values["policy"], Policy, head, algorithm)
    of_noise = _explorers("noise", values["noise"], NoiseProcess, head, algorithm)
    for policy in of_policy:
        for noise in of_noise:
            _check_explores(head, policy, noise)
    pairs = zip((of_policy, of_noise), values.values(), strict=True)
    lists = [explorers for explorers, value in pairs if isinstance(value, list | tuple)]
    return of_policy[0], of_noise[0], lists[0] if lists else ()


def _explorers(name: str, value: Any, kind: type[Explorer], head: Head, algorithm: Algorithm) -> list[Any]:
    """Return the policies or noises of `compile`, of which there is one for each worker, or only one.

    Raises:
        ValueError: as `_explorer`, or if a list is empty or holds an object twice.
    """
    if not isinstance(value, list | tuple):
        return [_explorer(name, value, kind, head, algorithm)]
    if not value or len({id(entry) for entry in value}) < len(value) or any(entry is None for entry in value):
        raise ValueError(f"{name} must be a list with a different object for each worker, got {value!r}")
    return [_explorer(name, entry, kind, head, algorithm) for entry in value]


def _explorer(name: str, value: Any, kind: type[Explorer], head: Head, algorithm: Algorithm) -> Any:
    """Return the policy or noise of `compile`; if another agent has used the object, a new one of the same arguments.

    An object that no agent has used belongs to this agent from now on.

    Raises:
        ValueError: if the value is not of this kind, or the head does not explore with this kind.
    """
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{name} must be one of {kind.__module__}, got {value!r}")
    if value is not None and not (head.acts_on if kind is Policy else head.takes_noise):
        raise ValueError(f"{name} is not supported: the head {type(head).__name__} {_exploration(head)}; got {value!r}")
    # Two agents must not anneal the same object, or draw from its generator.
    if value is not None and _users.setdefault(value, weakref.ref(algorithm))() is not algorithm:
        return value.from_config(value.get_config())
    return value


def _check_explores(head: Head, policy: Policy | None, noise: NoiseProcess | None) -> None:
    """Check that the policy or noise fits the head, and that there is a policy or noise if the head needs one.

    Raises:
        ValueError: if not.
    """
    if policy is not None and policy.acts_on not in head.acts_on:
        raise ValueError(
            f"policy {type(policy).__name__} acts on {policy.acts_on}, but the head {type(head).__name__} returns "
            f"{' or '.join(head.acts_on)}"
            + (f"; leave policy out: {type(head).__name__} samples the actions itself" if head.samples else "")
        )
    if noise is not None and noise.size != head.noise_size:
        raise ValueError(
            f"noise must have the size of an action, {head.noise_size}, got {noise!r} of size {noise.size}"
        )
    if noise is not None and head.samples and not isinstance(noise, ColoredNoise):
        raise ValueError(
            f"noise must be a noterl.noise.ColoredNoise for the head {type(head).__name__}, whose Gaussian samples it "
            f"replaces, got {noise!r}"
        )
    if policy is None and noise is None and not head.samples:
        name, base = ("noise", NoiseProcess) if head.takes_noise else ("policy", Policy)
        raise ValueError(
            f"{name} must be one of {base.__module__}: the head {type(head).__name__} {_exploration(head)}, and {name} "
            "is None"
        )


def _exploration(head: Head) -> str:
    """Describe how a head explores."""
    if head.takes_noise and not head.samples:
        return "explores by noise"
    if head.acts_on:
        return f"explores by a policy that acts on {' or '.join(head.acts_on)}"
    return "samples from its own distribution"


def check_network_of_user(algorithm: Algorithm) -> None:
    """Check that the argument `network` fits the agent, unless it is a description, which noterl has checked.

    Raises:
        ValueError: if the network does not fit.
    """
    if isinstance(algorithm.get_config().get("network"), NetworkDescription | None):
        return
    size: Any = algorithm.defaults().batch_size
    memory = {"replay": Replay(size)} if algorithm.memory == "replay" else {}  # smaller than the default
    with construction(algorithm.generators.seed):  # restores global generators, which Dropout of torch uses
        check_networks(Settings(algorithm, bind_head(algorithm), memory).make_learner(algorithm).updater)
