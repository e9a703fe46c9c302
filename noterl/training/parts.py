"""The parts of an agent: settings, learner, actor and session, each built at the first use."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from noterl import backends, networks
from noterl.acting.actor import Actor, split_fields
from noterl.acting.host_forward import HostForward, Joint
from noterl.acting.policy_state import NO_STATE, PolicyState, State, read_state
from noterl.algorithm import Algorithm, composites
from noterl.backends.reads import frozen
from noterl.envs.observation import fit_dtype
from noterl.explorer import Explorer
from noterl.heads import Head, one_of
from noterl.learning.data_memory import DataMemory, fix_statistics, identity_of
from noterl.learning.dry_run import find_forward_fields, naming_network, start_of
from noterl.learning.info_fields import with_next
from noterl.learning.learner import Learner
from noterl.learning.settings import Settings
from noterl.presets import FitDefaults
from noterl.random import Generators
from noterl.replay import Replay
from noterl.schedules import has_ended
from noterl.training.session import Session
from noterl.types import Counters
from noterl.utils.checks import check_bool
from noterl.utils.interrupts import StepGate
from noterl.utils.masks import read_masks

# Declarations that a built agent cannot change: its memory, optimizers and actor depend on them.
_FIXED = {
    *("memory", "head", "optimizer_names", "update_period", "rollout_steps", "random_spec", "extra_spec"),
    *("actor_fields", "state_spec", "learner_state_spec", "sequence_length", "burn_in", "state_every"),
    *("supports_replay", "multi_agent", "searches"),
}

# How often the programs of one `fit` are compiled again because plain attributes change; each takes seconds.
MOST_RETRACES = 3


class Parts:
    """The parts of an agent.

    Args:
        algorithm: the agent, which has finished its own constructor.

    Attributes:
        algorithm: the agent.
        session: environments and callbacks.
        gate: of the session, also inside `preserved`, which has another session.
        counters: the steps, updates and episodes so far.
        built_actor: the actor; None before the actor is built.
        act_generator: of `Agent.act` and `AlphaZero.search`; not saved.
        preset: what `fit` takes from the preset of the agent; None if the agent has none.
        data: the data set of the last `fit(dataset=)` in a memory; None before the first.
        saved_data: the state of such a memory, which the next `fit(dataset=)` restores; or None.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.counters: Counters = algorithm._counters
        self.session: Session = Session(algorithm)
        self.gate: StepGate = self.session.gate
        self.act_generator: np.random.Generator = Generators(algorithm.generators.seed)("act")
        self._settings: Settings | None = None
        self._learner: Learner | None = None
        self.built_actor: Actor | None = None
        self.preset: FitDefaults | None = None
        self.data: DataMemory | None = None
        self.saved_data: dict[str, Any] | None = None

    @property
    def learner(self) -> Learner:
        """The learner; an agent that is not compiled is compiled with its defaults."""
        if self._learner is None:
            agent: Any = self.algorithm
            agent.compile()
        assert self._learner is not None
        return self._learner

    @property
    def settings(self) -> Settings:
        """The settings; as for `learner`."""
        assert self.learner and self._settings is not None
        return self._settings

    @property
    def actor(self) -> Actor:
        """The actor, which the first use makes; acting needs no memory and no optimizers."""
        learner = self.learner
        if self.built_actor is None:
            learner.updater.leave_scope()
            with naming_network(self.algorithm):
                self.built_actor = self._make_actor()
        return self.built_actor

    def setting(self, name: str) -> Any:
        """Return a setting; None if the agent is not compiled."""
        return None if self._settings is None else getattr(self._settings, name)

    def compile(self, head: Head, arguments: dict[str, Any]) -> None:
        """Make the settings and a new learner; `Agent.compile` documents the arguments."""
        algorithm = self.algorithm
        self.session.refuse_while_training("compile")
        before = self._settings
        kept = self.setting("replay")
        # Compiling again keeps the memory unless an argument replaces it.
        if kept is not None:
            arguments.setdefault("replay", kept)
        settings = Settings(algorithm, head, arguments)
        learner = settings.make_learner(algorithm)
        if kept is not None and settings.replay is not kept and len(kept):
            warnings.warn(
                f"replay: the new memory replaces one with {len(kept):,} transitions, which are lost; without this "
                "argument, compile keeps the memory",
                stacklevel=4,  # the caller of compile, which `utils.words` wraps
            )
        if settings.replay is not kept:
            self.data = self.saved_data = None  # priorities of another memory
        # A new agent that starts at step 0 has none.
        for text in settings.ended_schedules(self.counters.steps) if self.counters.steps else ():
            warnings.warn(
                f"{text} from now on: schedules count all {self.counters.steps:,} steps of the agent, and this one "
                "ends before; add these steps to its range, or pass a number",
                stacklevel=4,
            )
        used_polyak = self._learner is not None and self._learner.schedule.polyak
        if self._learner is not None:
            self._learner.discard_rollout()  # the new learner may have the same memory
        self._settings = settings
        self._learner = learner
        self.built_actor = None
        algorithm._set(head=head)
        if before is not None and (changes := settings.changes_since(before)):
            self.session.show_message(f"compile changes {changes}; the rest stays as it was")
        algorithm._reads.watch("reward_model", settings.reward_model)
        if used_polyak or learner.schedule.polyak:  # otherwise tau keeps its value: 1, or one that the agent has set
            algorithm.tau.assign(1.0 if learner.schedule.tau is None else learner.schedule.tau)

    def warn_of_ended_rates(self, steps: int) -> None:
        """Warn if updates change nothing, because the schedule of a learning rate has ended at 0 before `steps`."""
        for text, rate in self.settings.rate_schedules().items():
            if has_ended(rate, steps) and rate(steps) == 0:
                message = f"{text} is 0 after {steps:,} steps, so its updates change nothing: call compile with another"
                warnings.warn(message, stacklevel=5)  # the caller of fit

    def declared(self) -> Parts:
        """Make the actor and declare the fields of the memory, so that the agent can save and restore states.

        Nothing is allocated. Returns these parts.
        """
        actor = self.actor
        learner = self.learner
        if not learner.is_declared:
            with self.algorithm._reads.recording() as reading:  # dry runs call the methods of the author
                reading.is_kept = False
                learner.declare(actor.forward_fields)
        return self

    def build(self) -> tuple[Learner, Actor]:
        """Allocate the memory and compile the updates, unless this was done; return the learner and the actor.

        The updates are compiled again if the report that the actor needs has changed.
        """
        self.declared()
        learner = self.learner
        actor = self.actor
        if not learner.is_built:
            learner.build()
        if not learner.is_built or learner.report is not actor.forward.report:
            learner.compile(actor.forward.report)
        return learner, actor

    def build_to_train(self) -> tuple[Learner, Actor]:
        """Return the built learner and actor at the start of a training, and begin to count retraces.

        Raises:
            ValueError: if layers were frozen or unfrozen since the optimizers were built.
        """
        self.algorithm._reads.check()
        self.algorithm._reads.retraced.clear()
        learner, actor = self.build()
        if set(map(id, self.algorithm.trained_variables())) != learner.trainable:
            raise ValueError(
                f"the layers of {type(self.algorithm).__name__} that can be trained have changed since the agent was "
                "built, and its optimizers train those of before: call compile again with the same arguments, which "
                "keeps the replay memory"
            )
        return learner, actor

    def before_new_weights(self) -> None:
        """Discard the steps of a rollout in progress, because the weights will differ."""
        if self._learner is not None:
            self._learner.before_new_weights()

    def mark_stale(self) -> None:
        """Let the actor, if there is one, fetch the weights again."""
        if self.built_actor is not None:
            self.built_actor.mark_stale()

    def use_data(self, dataset: Any, rows: int, *, is_resumed: bool) -> Replay:
        """Return the memory that holds a data set, with the priorities of the last `fit` or of a restored state.

        The memory stays in `data`. The normalizers compute their statistics from the data set, unless there are some.

        Raises:
            ValueError: if a run resumes with other data, or the data set has fewer than the `rows` of a batch.
        """
        learner = self.learner
        if len(dataset) < rows:
            raise ValueError(
                f"dataset must have at least the {rows} transitions that a batch of batch_size={learner.batch_size} "
                f"takes from it, got {len(dataset)}"
            )
        memory = self.data
        identity = identity_of(dataset)
        if memory is None or memory.identity != identity:
            memory = DataMemory(learner, dataset, identity)
        memory.replay.add_fields(with_next(learner.info_spec))  # the agent may have met masks since the memory was made
        if self.saved_data is not None:
            memory.set_state(self.saved_data, is_resumed=is_resumed)
            self.saved_data = None
        fix_statistics(self.algorithm, dataset)
        self.data = memory
        return memory.replay

    def reseed(self, seed: int | None) -> None:
        """Seed every generator again: the agent's own, and the generators of Keras layers."""
        learner, actor = self.build()
        generators = self.algorithm.generators
        generators.reseed(seed)
        actor.explorer.generator = generators("exploration")
        for variable in learner.variables:
            if networks.is_seed_state(variable):
                variable.assign(np.array([generators("layers").integers(2**31), 0], variable.dtype))
        self.act_generator = Generators(seed)("act")

    def act(self, observation: Any, state: Any, starts: Any, deterministic: bool, action_mask: Any) -> Any:
        """Return the action for one observation or a batch; `Agent.act` documents the arguments and the result."""
        check_bool("deterministic", deterministic)
        algorithm = self.algorithm
        encoder = self.algorithm.spaces.encoder
        mask = None
        single = encoder.axes(observation) == 0
        encoded = encoder(fit_dtype(encoder.original_space, observation))
        encoded = encoded[None] if single else encoded  # one observation is a batch of one row
        if action_mask is not None:
            if not algorithm.head.takes_mask:
                raise ValueError(
                    f"action_mask must be None for the head {type(algorithm.head).__name__}, got {action_mask!r}"
                )
            mask = read_masks([action_mask] if single else action_mask, algorithm.action_space, len(encoded))
        states = read_state(state, starts, self.actor.start, len(encoded), single)
        actions, states = self.act_encoded(encoded, deterministic, mask, states)
        actions = one_of(actions, 0, algorithm.action_space) if single else actions
        if not states:
            return actions
        return actions, {name: np.array(value[0] if single else value) for name, value in states.items()}

    def act_encoded(
        self, observations: np.ndarray, deterministic: bool, mask: np.ndarray | None = None, state: State = NO_STATE
    ) -> tuple[np.ndarray, State]:
        """Return actions and states `[N, ...]` for encoded observations `[N, ...]`; training is not affected."""
        if self.algorithm._reads.in_place:
            self.algorithm._reads.check()
        actor = self.actor
        actor.mark_stale()
        # A copy with another generator, because acting must not change training.
        explorer = None if deterministic else actor.explorer.copy_with_generator(self.act_generator)
        reset = getattr(explorer, "reset", None)
        if reset is not None:
            reset()  # otherwise each call would repeat the next values of the training noise
        return actor.act(observations, self.counters.steps, explorer, mask, state)

    def compile_acting(self, function: Callable[..., Any], name: str) -> Callable[[Any], np.ndarray]:
        """Return a compiled function of observations; `trace_counts` counts traces under the name."""
        algorithm = self.algorithm
        jit_compile = self.settings.jit_compile
        return backends.current().compile_call(
            algorithm._reads.traced(function, jit_compile, acting=True),
            algorithm._variables(),
            acting=True,
            jit_compile=jit_compile,
            on_trace=partial(algorithm.trace_counts.update, [name]),
        )

    def _make_actor(self) -> Actor:
        """Return a new actor, after a pass on one row has shown that the outputs fit the head."""
        algorithm = self.algorithm
        settings = self.settings
        start = start_of(algorithm)
        fields = find_forward_fields(algorithm, settings.jit_compile, start)
        forward = self._make_forward(start)
        probe = forward.probe(1)
        outputs = forward.with_state(probe, PolicyState(start, 1).values)[0] if start else forward(probe)
        outputs, _ = split_fields(outputs, fields)
        algorithm.head.check(outputs.shape)
        algorithm.head.check_values(outputs)
        explorer = settings.policy or settings.noise or Explorer()
        starts = settings.schedule.learning_starts
        observations = algorithm.observation_dtype, algorithm.spaces.normalizers
        arguments = algorithm.head, explorer, algorithm.generators, *observations, starts, fields
        with algorithm._reads.recording(acting=True) as reading:
            agent: Any = algorithm
            actor: Actor = agent._new_actor(forward, *arguments)
            reading.is_kept = actor.searches
        actor.worker_explorers = settings.worker_explorers
        actor.start = start
        return actor

    def _make_forward(self, start: State) -> HostForward:
        """Return the forward pass for acting, with the current values of the attributes that `forward` reads."""
        algorithm = self.algorithm
        spaces = self.algorithm.spaces
        function = algorithm._forward_with_state if start else algorithm._joint_forward
        compiled = self.compile_acting(function, "forward")
        joint = None
        if spaces.team is not None:
            joint = Joint(spaces.team.observation_columns, [part.size for part in algorithm.head.parts])
        acting = [*composites(algorithm), *algorithm.networks().values()]
        variables = acting, algorithm.hyperparameters.values(), algorithm.trained_variables()
        layout = spaces.encoder.space.shape, algorithm.observation_dtype, joint
        with algorithm._reads.recording(acting=True) as reading:
            forward = HostForward(compiled, *variables, *layout, start)
            if reading.assigned:  # a copy in NumPy would not assign it
                forward.program = None
                forward.report = []
            reading.is_kept = forward.in_numpy
        return forward

    def check_assignment(self, name: str, value: Any) -> None:
        """Refuse what an agent that is built cannot change; called before an attribute of the agent is assigned.

        Raises:
            ValueError: if the attribute is a fixed declaration, or the value replaces networks or variables.
        """
        learner = self._learner
        current = getattr(self.algorithm, name, None)
        class_name = type(self.algorithm).__name__
        if learner is not None and learner.is_declared:
            if name in _FIXED and frozen(value) != frozen(current):
                raise ValueError(
                    f"{name} of {class_name} cannot be changed after the agent was built, got {value!r}: pass it to "
                    "the constructor of a new agent"
                )
            if _ids_of_networks(current) != _ids_of_networks(value):
                raise ValueError(
                    f"{name}: the networks and variables of {class_name} cannot be replaced after the agent was built, "
                    f"because its optimizers and compiled updates use them. noterl.networks.copy(new, agent.{name}) "
                    "copies the weights of another network; `assign` sets a variable. After another `compile`, the "
                    "attribute can be replaced until the next `fit`"
                )
        # A new actor will use the new networks.
        elif self.built_actor is not None and _ids_of_networks(current) != _ids_of_networks(value):
            self.built_actor = None

    def check_retrace(self, name: str) -> None:
        """Count a change of an attribute that programs have read, and allow at most three in one `fit`.

        Changes between the same two updates count once.

        Raises:
            RuntimeError: if this is the fourth time, or other processes have copies of the attribute.
        """
        reads = self.algorithm._reads
        session = self.session
        class_name = type(self.algorithm).__name__
        if not session.is_training or reads.is_eager:
            return
        reason = None
        acts_in_workers = session.lanes is not None and session.lanes.copies_policy
        is_copied = name in reads.acting and (acts_in_workers or self.algorithm.searches)
        if is_copied or self.learner.strategy.processes > 1:
            reason = "a search or other processes have copied its value"
        elif len(reads.retraced | {self.counters.updates}) > MOST_RETRACES:
            reason = f"it is a constant of programs, which this fit has compiled again {MOST_RETRACES} times"
        if reason is not None:
            raise RuntimeError(
                f"{name} of {class_name} cannot be changed now, while fit is running, because {reason}: change it "
                "between two calls of fit, or make it by self.hyperparameter(name, value) in __init__, which can "
                "change at any time"
            )
        reads.retraced.add(self.counters.updates)

    def outdate_acting(self, name: str) -> None:
        """Make the forward pass for acting again if the last pass has read the attribute."""
        if name in self.algorithm._reads.acting and self.built_actor is not None:
            self.built_actor.forward.outdate(partial(self._make_forward, self.built_actor.start))
            self.learner.report = ()  # `build` compiles the updates again, for the report of the new forward pass
            if not self.session.is_training:
                self.built_actor = None

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore the agent exactly at the end of the `with` block; see `Agent.preserved`."""
        agent: Any = self.algorithm
        self.session.refuse_while_training("preserved")
        state = agent.get_state()
        attributes = dict(vars(agent))
        saved = dict(vars(self))
        actor = self.actor
        # The block draws from copies of the generators.
        actor.generators = copy.deepcopy(agent.generators)
        actor.explorer.generator = actor.generators("exploration")
        agent._set(generators=actor.generators)
        self.act_generator = copy.deepcopy(self.act_generator)
        self.session = Session(agent)
        self.session.verbose = 0  # a trial with another optimizer is no change that the user has to know
        try:
            yield
        finally:
            self.session.close_other()
            vars(agent).clear()
            actor.generators = attributes["generators"]
            vars(agent).update(attributes)
            vars(self).update(saved)
            self.session = Session(agent)
            agent.set_state(state)
            self.session = saved["session"]  # last, because set_state closes the session's environments
            agent._reads.check()


def _ids_of_networks(value: Any) -> list[int]:
    """Return the ids of the networks and variables in the value of an attribute."""
    return [id(network) for network in networks.find_networks({"": value}).values()]
