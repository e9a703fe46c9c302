"""Optimizers of Keras and torch: resolving the argument of `compile`, changing rules during training, and state."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends import keras
from noterl.hyperparameters import Hyperparameter
from noterl.schedules import Schedule
from noterl.utils.checks import check_number
from noterl.utils.keras_backend import optimizer_config
from noterl.utils.schema import Array, Constant, check

# id of a variable -> the axes that transpose it to Keras's layout. Variables that have this layout may be absent.
Layout = Mapping[int, Sequence[int]]

# A rule is a number of an optimizer that can be changed during training. These are rules of Keras optimizers, with
# their bounds. The learning rate is not among them, because it already is a variable in Keras.
_RULES = {"beta_1": (0.0, 1.0), "beta_2": (0.0, 1.0), "weight_decay": (0.0, math.inf)}
# The attributes in which a Keras optimizer keeps what `exclude_from_weight_decay` has set.
_EXCLUDED = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


_SCHEDULE_LINE = (
    "A learning rate that changes during training is a schedule and not a function, such as "
    "compile(optimizer=noterl.schedules.Linear(3e-4, 0.0, steps=100_000))"
)


def resolve(optimizer: Any, names: Sequence[str], learning_rate: float, default: Any = None) -> dict[str, Any]:
    """Return one optimizer (or function that makes one) for each name.

    Args:
        optimizer: None, one optimizer, a list in the order of `names`, or a dict by name. A number or a schedule stands
            for the default optimizer with this learning rate.
        names: the agent's `optimizer_names`.
        learning_rate: of Adam, if there is no default.
        default: the algorithm's default, in the forms of `optimizer`; None for Adam.

    Raises:
        ValueError: if `optimizer` is anything else, or needs the torch backend but another one is used.
    """
    if default is None:
        default = keras.optimizers.Adam(learning_rate)
    if optimizer is None:
        optimizer = default
    if isinstance(optimizer, list | tuple):
        if len(optimizer) != len(names):
            hint = "; PPO has two if it is built with optimizers=2" if len(names) == 1 else ""
            raise ValueError(
                f"optimizer must list one optimizer for each of {', '.join(names)}, got {len(optimizer)}{hint}"
            )
        optimizer = dict(zip(names, optimizer, strict=True))
    elif not isinstance(optimizer, Mapping):
        if _is_torch(optimizer) and len(names) > 1:
            raise ValueError(f"optimizer: a torch optimizer cannot be shared by {', '.join(names)}; pass a dict")
        # The names do not share a Keras optimizer, because `_resolve_one` copies it.
        optimizer = dict.fromkeys(names, optimizer)
    if set(optimizer) != set(names):
        raise ValueError(f"optimizer must have the keys {sorted(names)}, got {sorted(map(str, optimizer))}")
    rates = (numbers.Real, Schedule, keras.optimizers.schedules.LearningRateSchedule)
    return {
        name: _with_rate(default, names, name, value) if isinstance(value, rates) else _resolve_one(value, name)
        for name, value in optimizer.items()
    }


def _with_rate(default: Any, names: Sequence[str], name: str, rate: Any) -> keras.optimizers.Optimizer:
    """Return the default optimizer for a name, with another learning rate."""
    if isinstance(rate, numbers.Real):
        rate = check_number("optimizer, as a learning rate,", rate, low=0, above=True)
    optimizer = resolve(None, names, 0.0, default)[name]  # the learning rate is replaced below
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"optimizer must be an optimizer, because the default is not one of Keras; got {rate!r}")
    schedule = rate if isinstance(rate, Schedule) else None
    config = {**optimizer_config(optimizer), "learning_rate": rate if schedule is None else schedule(0)}
    new = type(optimizer).from_config(config)
    new.noterl_schedule = schedule
    return new


def _resolve_one(optimizer: Any, name: str) -> Any:
    """Return an optimizer that only this agent uses, or a function that makes one."""
    if isinstance(optimizer, str):
        try:
            return keras.optimizers.get(optimizer)
        except ValueError as error:
            raise ValueError(f"optimizer: Keras has no optimizer named {optimizer!r}") from error
    if isinstance(optimizer, keras.optimizers.Optimizer):
        if optimizer.loss_scale_factor or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(f"optimizer for {name!r} must not scale losses, which are float32 here, got {optimizer!r}")
        return copy_without_state(optimizer)
    # By the module's name, because torch may not be installed.
    if any(base.__module__ == "torch.optim.lr_scheduler" for base in type(optimizer).__mro__):
        raise ValueError(
            f"optimizer for {name!r} must be an optimizer, got torch's scheduler {type(optimizer).__name__}: pass its "
            "optimizer, and a noterl.callbacks.LearningRateScheduler in the callbacks of fit"
        )
    # A class of another library is callable, too, but does not make an optimizer of torch.
    makes_torch = callable(optimizer) and (not isinstance(optimizer, type) or _is_torch_class(optimizer))
    if makes_torch or _is_torch(optimizer):
        if "modules" not in backends.current().capabilities:
            description = type(optimizer).__name__ if _is_torch(optimizer) else "a function of parameters"
            raise ValueError(
                f"optimizer: {description} needs the torch backend, but this process runs on {backends.name()}: set "
                f"KERAS_BACKEND=torch before Keras is imported, or pass a keras.optimizers.Optimizer. {_SCHEDULE_LINE}"
            )
        return optimizer
    raise ValueError(
        f"optimizer for {name!r} must be a keras.optimizers.Optimizer, its name, a learning rate or its schedule, or "
        f"with KERAS_BACKEND=torch a torch.optim.Optimizer or a function parameters -> optimizer; got {optimizer!r:.99}"
    )


def copy_without_state(
    optimizer: keras.optimizers.Optimizer, optimizer_class: type[keras.optimizers.Optimizer] | None = None
) -> keras.optimizers.Optimizer:
    """Return a new Keras optimizer with the current rules of another one, without the state.

    If the learning rate has a schedule of `noterl.schedules`, the Keras optimizer holds the schedule's value at step 0.
    `schedule_of` returns the schedule.

    Args:
        optimizer: the optimizer.
        optimizer_class: the class of the new optimizer; by default the class of `optimizer`.
    """
    config = optimizer_config(optimizer)
    schedule = schedule_of(optimizer)
    if schedule is not None:
        config["learning_rate"] = schedule(0)
    # The constructor takes numbers, where a built optimizer has variables.
    values = {key: float(value) if isinstance(value, keras.Variable) else value for key, value in config.items()}
    new = (optimizer_class or type(optimizer)).from_config(values)
    new.noterl_schedule = schedule
    # They are not part of the config.
    vars(new).update({name: value for name, value in vars(optimizer).items() if name in _EXCLUDED})
    return new


def schedule_of(optimizer: Any) -> Schedule | None:
    """Return the schedule of the learning rate, of `noterl.schedules`; None if the learning rate has none."""
    learning_rate = getattr(optimizer, "_learning_rate", None)
    return learning_rate if isinstance(learning_rate, Schedule) else getattr(optimizer, "noterl_schedule", None)


def build(optimizer: Any, variables: Sequence[keras.Variable]) -> Any:
    """Return the optimizer, built for `variables`, with rules that can be changed during training.

    Raises:
        ValueError: if a function does not return a torch optimizer, or if a torch optimizer needs a closure or does not
            hold all of the variables.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer):
        if not optimizer.built:
            optimizer.build(list(variables))
            _make_variables_of_rules(optimizer)
        return optimizer
    if not _is_torch(optimizer):
        try:
            optimizer = optimizer([variable.value for variable in variables])
        except TypeError as error:  # a function of progress calculates with the list of parameters
            raise ValueError(
                f"optimizer: the function of parameters raised {error!r:.200}. {_SCHEDULE_LINE}"
            ) from error
        if not _is_torch(optimizer):
            raise ValueError(
                f"optimizer: the function must return a torch.optim.Optimizer, got {optimizer!r:.200}. {_SCHEDULE_LINE}"
            )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"optimizer must use one gradient per step, got torch's {type(optimizer).__name__}, whose step requires a "
            "closure that evaluates the loss again"
        )
    held = {id(variable) for variable in variables_in(optimizer, variables)}
    missing = [variable.name for variable in variables if id(variable) not in held]
    if missing:
        raise ValueError(f"optimizer must hold all parameters that the agent trains, {', '.join(missing)} are missing")
    return optimizer


def variables_in(optimizer: Any, variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """Return the variables whose parameters a torch optimizer holds; none for other optimizers and functions."""
    groups = optimizer.param_groups if _is_torch(optimizer) else []
    parameters = {id(parameter) for group in groups for parameter in group["params"]}
    return [variable for variable in variables if id(variable.value) in parameters]


def _make_variables_of_rules(optimizer: keras.optimizers.Optimizer) -> None:
    """Replace the numbers of rules by variables, because a compiled update would contain numbers as constants.

    With `live_numbers` the rules stay numbers, because every step reads the numbers again. On JAX, Keras assigns all
    variables of an optimizer that accumulates gradients, which the bounds of the rules do not allow in a compiled call.
    """
    accumulates = backends.name() == "jax" and optimizer.gradient_accumulation_steps
    if "live_numbers" in backends.current().capabilities or accumulates:
        return
    optimizer.noterl_rules = {}
    for rule, (minimum, maximum) in _RULES.items():
        value = getattr(optimizer, rule, None)
        if value is not None:
            variable = Hyperparameter(value, rule, minimum=minimum, maximum=maximum)
            optimizer.noterl_rules[rule] = variable
            setattr(optimizer, rule, variable)


def constants(optimizer: Any) -> dict[str, Any]:
    """Return the numbers of a built Keras optimizer that a compiled update contains as constants, such as `epsilon`."""
    plain = (bool, int, float, str, type(None))
    return {name: value for name, value in vars(optimizer).items() if name[0] != "_" and isinstance(value, plain)}


def has_rules(optimizer: Any) -> bool:
    """Return whether a built optimizer has rules that `update_rules` must set before updates."""
    return schedule_of(optimizer) is not None or bool(getattr(optimizer, "noterl_rules", {}))


def update_rules(optimizer: Any, step: int) -> None:
    """Set the learning rate to the value of its schedule after `step` environment steps; call `assign_rules`.

    Raises:
        ValueError: if the value is negative or not finite, or a rule is out of bounds.
    """
    schedule = schedule_of(optimizer)
    if schedule is not None:
        optimizer.learning_rate = check_number(f"learning_rate of {schedule!r} at step {step}", schedule(step), low=0)
    assign_rules(optimizer)


def assign_rules(optimizer: Any) -> None:
    """Assign numbers that the user set as attributes (`optimizer.beta_1 = 0.5`) to the variables of the rules.

    Raises:
        ValueError: if a number is out of bounds; the rule does not change then.
    """
    for rule, variable in getattr(optimizer, "noterl_rules", {}).items():
        value = getattr(optimizer, rule)
        if value is not variable:
            setattr(optimizer, rule, variable)
            variable.assign(value)


def _is_torch(optimizer: Any) -> bool:
    return _is_torch_class(type(optimizer))


def _is_torch_class(kind: type) -> bool:
    return any(base.__module__.startswith("torch.optim") for base in kind.__mro__)


def set_rules(by_name: Mapping[str, Any], rule: str, value: float, name: str | None) -> None:
    """Set a rule of the optimizer with this name, or of all optimizers if the name is None.

    Raises:
        ValueError: if there is no such optimizer, or `set_rule` refuses the value.
    """
    optimizers = chosen(by_name, name)
    for optimizer in optimizers:
        get_rule(optimizer, rule)  # raises an error if one has no such rule, before another is changed
        if rule == "learning_rate":
            check_without_schedule(optimizer)
    for optimizer in optimizers:
        set_rule(optimizer, rule, value)


def chosen(by_name: Mapping[str, Any], name: str | None) -> list[Any]:
    """Return the optimizer with this name, or all optimizers if the name is None.

    Raises:
        ValueError: if there is no such optimizer.
    """
    if name is not None and name not in by_name:
        raise ValueError(f"optimizer must be one of {', '.join(by_name)}, got {name!r}")
    return list(by_name.values()) if name is None else [by_name[name]]


def get_rule(optimizer: Any, rule: str) -> float:
    """Return the current value of `learning_rate`, `beta_1`, `beta_2` or `weight_decay`.

    Raises:
        ValueError: if the optimizer has no such rule.
    """
    if _is_torch(optimizer):
        group = optimizer.param_groups[0]
        beta_1, beta_2 = group.get("betas", (None, None))
        value = {**group, "beta_1": beta_1, "beta_2": beta_2, "learning_rate": group.get("lr")}.get(rule)
    elif rule == "learning_rate":
        value = backends.current().fetch(optimizer.learning_rate)
    else:
        value = getattr(optimizer, rule, None)
    if value is None:
        raise ValueError(f"the optimizer {type(optimizer).__name__} has no rule {rule!r}")
    return float(value)


def set_rule(optimizer: Any, rule: str, value: float) -> None:
    """Set a rule for the next updates, without retracing; `get_rule` names the rules.

    Raises:
        ValueError: if the optimizer has no such rule, the value is out of bounds, or the rule has a schedule.
    """
    get_rule(optimizer, rule)  # raises an error if the optimizer has no such rule
    if rule == "learning_rate":
        check_without_schedule(optimizer)
    low, high = _RULES.get(rule, (0.0, math.inf))
    value = check_number(rule, value, low=low, high=high)
    if _is_torch(optimizer):
        name = "lr" if rule == "learning_rate" else rule
        first_value = optimizer.param_groups[0].get(name)
        for group in optimizer.param_groups:
            if rule in ("beta_1", "beta_2"):
                first, second = group["betas"]
                group["betas"] = (value, second) if rule == "beta_1" else (first, value)
            else:
                # The groups keep their ratio, also after a value of 0.
                key = f"noterl_ratio_{name}"
                group[key] = group[name] / first_value if first_value else group.get(key, 1.0)
                group[name] = value * group[key]
    elif rule == "learning_rate":
        optimizer.learning_rate = value
    elif isinstance(getattr(optimizer, rule), Hyperparameter):
        getattr(optimizer, rule).assign(value)
    else:
        setattr(optimizer, rule, value)


def check_without_schedule(optimizer: Any) -> None:
    """Check that the learning rate can be set.

    Raises:
        ValueError: if the learning rate has a schedule, of `noterl.schedules` or of Keras.
    """
    of_keras = getattr(optimizer, "_learning_rate", None)
    is_of_keras = isinstance(of_keras, keras.optimizers.schedules.LearningRateSchedule)
    schedule = of_keras if is_of_keras else schedule_of(optimizer)
    if schedule is not None:
        raise ValueError(
            f"learning_rate has the schedule {schedule!r}, which would overwrite other values; compile with a "
            "number, such as compile(optimizer=1e-3)"
        )


class DeferredOptimizer:
    """An optimizer whose slots are allocated by `build`; a state that is restored before is kept as arrays.

    `Learner.declare` makes one for each optimizer of the agent, and the discriminator has one.

    The rules and the learning rate of a state change the optimizer at once. A `torch.optim` optimizer holds parameters
    of networks, so the constructor builds such an optimizer.

    Args:
        optimizer: a value of the dict that `resolve` returns.
        variables: the variables that the optimizer trains.

    Attributes:
        optimizer: the optimizer.

    Raises:
        ValueError: as `build`, for a `torch.optim` optimizer.
    """

    def __init__(self, optimizer: Any, variables: Sequence[keras.Variable]) -> None:
        self._variables = list(variables)
        is_keras = isinstance(optimizer, keras.optimizers.Optimizer)
        self.optimizer: Any = optimizer if is_keras else build(optimizer, variables)
        self._kept: dict[str, Any] | None = None  # the restored state of an optimizer that is not built

    @property
    def is_built(self) -> bool:
        """Whether the slots are allocated."""
        return bool(getattr(self.optimizer, "built", True))

    def build(self, layout: Layout) -> None:
        """Allocate the slots, and restore the state that was kept."""
        state = None if self._kept is None else self.get_state(layout)
        build(self.optimizer, self._variables)
        if state is not None:
            self.set_state(state, layout)

    def get_state(self, layout: Layout, *, allocate: bool = True) -> dict[str, Any]:
        """Return the state; slots have Keras's layout of the trained variables.

        Numbers that the user has set as attributes are assigned to the variables of the rules first.

        Args:
            layout: the layout of the variables in memory.
            allocate: whether an optimizer without slots is built, for the slots' initial values. If False, the
                state is incomplete: only `set_state` accepts such a state.
        """
        optimizer = self.optimizer
        if _is_torch(optimizer):
            return _torch_state(optimizer)
        if allocate and not self.is_built and self._kept is None:
            self.build(layout)
        assign_rules(optimizer)
        fetch = backends.current().fetch
        scalars = [fetch(variable) for variable in _scalars(optimizer)]
        slots = None
        if self._kept is not None:
            # The optimizer's own scalars come first: the learning rate may have changed since the state was restored.
            scalars += self._kept["scalars"][len(scalars) :]
            slots = self._kept["slots"]
        elif self.is_built:
            slots = {
                name: [fetch(slot).transpose(axes) for slot, axes in pairs]
                for name, pairs in _slots(optimizer, layout).items()
            }
        return {"class": type(optimizer).__name__, "scalars": scalars, "slots": slots, "rules": _rules(optimizer)}

    def check_state(self, state: dict[str, Any], layout: Layout) -> None:
        """Check that `set_state` can restore this state. For a torch optimizer, the slots' shapes are not checked.

        Raises:
            ValueError: if the state belongs to another optimizer, or to other variables.
        """
        # A check needs the shapes of slots, but must not allocate them.
        optimizer = self.optimizer if self.is_built else _without_slots(self.optimizer, self._variables)
        if _is_torch(optimizer) != ("torch" in state):
            theirs, ours = ("torch.optim", "Keras") if "torch" in state else ("Keras", "torch.optim")
            raise ValueError(
                f"the state belongs to an optimizer of {theirs}, and this agent has one of {ours}: call "
                "compile(optimizer=...) first, as the program did that saved it"
            )
        saved = state.get("torch", state)["class"]
        class_name = type(optimizer).__name__
        if saved != class_name:
            raise ValueError(f"the state belongs to the optimizer {saved!r}, but the agent has {class_name}")
        if _is_torch(optimizer):
            sizes = len(state["torch"]["groups"]), len(optimizer.param_groups)
            if sizes[0] != sizes[1]:
                raise ValueError(f"{sizes[0]} parameter groups of {class_name} do not fit the agent's {sizes[1]}")
            return
        schema = {
            "class": Constant(class_name),
            "scalars": [Array(shape=variable.shape) for variable in _scalars(optimizer)],
            "slots": {
                name: [Array(slot.dtype, [slot.shape[axis] for axis in axes]) for slot, axes in pairs]
                for name, pairs in _slots(optimizer, layout).items()
            },
            "rules": dict.fromkeys(_rules(optimizer), float),
        }
        check(state, schema, f"the state of the optimizer {class_name}")
        if any(np.any(value < 0) for value in state["scalars"] if value.dtype.kind == "i"):
            raise ValueError(f"the state of the optimizer {class_name}: its count of updates must be at least 0")

    def set_state(self, state: dict[str, Any], layout: Layout) -> None:
        """Restore what `get_state` returned; call `check_state` first."""
        optimizer = self.optimizer
        if _is_torch(optimizer):
            _set_torch_state(optimizer, state)
            return
        assign_rules(optimizer)
        self._kept = None if self.is_built or state["slots"] is None else state
        if self.is_built:
            for name, pairs in _slots(optimizer, layout).items():
                for (slot, axes), value in zip(pairs, state["slots"][name], strict=True):
                    slot.assign(np.transpose(value, np.argsort(axes)))
        # An optimizer that is not built has only some of the scalars.
        for variable, value in zip(_scalars(optimizer), state["scalars"], strict=self.is_built):
            # TensorFlow counts updates in int64, the others in int32.
            is_count = value.dtype.kind == "i"
            variable.assign(np.minimum(value.astype(np.int64), np.iinfo(variable.dtype).max) if is_count else value)
        for rule, value in state["rules"].items():
            set_rule(optimizer, rule, value)


def _without_slots(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> keras.optimizers.Optimizer:
    """Return a built copy of an optimizer whose slots have the usual shapes, but hold one number each."""

    class WithoutSlots(type(optimizer)):  # type: ignore[misc]
        def add_variable(self, shape: Any, *args: Any, **kwargs: Any) -> keras.Variable:
            variable = super().add_variable((), *args, **{**kwargs, "layout": None})
            variable._shape = tuple(shape)
            return variable

    WithoutSlots.__name__ = type(optimizer).__name__  # which `check_state` compares
    return build(copy_without_state(optimizer, WithoutSlots), variables)


def variables(optimizer: Any) -> list[keras.Variable]:
    """Return every variable of a Keras optimizer; an empty list for torch optimizers and functions that make one."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return []
    return [*optimizer.variables, *getattr(optimizer, "noterl_rules", {}).values()]


def _rules(optimizer: keras.optimizers.Optimizer) -> dict[str, float]:
    """Return the rules that this optimizer has, except its learning rate."""
    return {rule: float(getattr(optimizer, rule)) for rule in _RULES if getattr(optimizer, rule, None) is not None}


def _slots(
    optimizer: keras.optimizers.Optimizer, layout: Layout
) -> dict[str, list[tuple[keras.Variable, Sequence[int]]]]:
    """Return the slots by name, such as momentums: for each trained variable, the slot's variable and its axes."""
    trained = optimizer._trainable_variables
    shapes = [variable.shape for variable in trained]
    axes = [layout.get(id(variable), range(len(variable.shape))) for variable in trained]
    # Keras has no list of slots: slots are the lists of variables that have the shapes of the trained ones.
    slots = {}
    for name, value in vars(optimizer).items():
        if name == "_trainable_variables" or not isinstance(value, list) or not trained:
            continue
        if all(isinstance(slot, keras.Variable) for slot in value) and [slot.shape for slot in value] == shapes:
            slots[name.strip("_")] = list(zip(value, axes, strict=True))
    return dict(sorted(slots.items()))


def _scalars(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables that are not slots: iterations, learning rate and others."""
    excluded = {id(slot) for pairs in _slots(optimizer, {}).values() for slot, _ in pairs}
    # Rules are variables on only two of the backends, so they are saved by name.
    excluded |= {id(value) for value in vars(optimizer).values() if isinstance(value, Hyperparameter)}
    return [variable for variable in optimizer.variables if id(variable) not in excluded]


def _torch_state(optimizer: Any) -> dict[str, Any]:
    """Return the `state_dict` of a torch optimizer, with arrays, lists and string keys that files can hold."""

    def plain(value: Any) -> Any:
        if hasattr(value, "detach"):
            return backends.current().fetch(value)
        if isinstance(value, Mapping):
            return {str(key): plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list | tuple) else value

    state = plain(optimizer.state_dict())
    return {"torch": {"class": type(optimizer).__name__, "state": state["state"], "groups": state["param_groups"]}}


def _set_torch_state(optimizer: Any, state: dict[str, Any]) -> None:
    """Restore what `_torch_state` returned."""

    def tensors(values: dict[str, Any]) -> dict[str, Any]:
        convert = keras.ops.convert_to_tensor
        # A copy, because a tensor of torch may share the memory of the array.
        return {key: convert(value.copy()) if isinstance(value, np.ndarray) else value for key, value in values.items()}

    saved = state["torch"]
    slots = {int(index): tensors(values) for index, values in saved["state"].items()}
    # A saved state holds lists where torch has tuples, such as in `betas`.
    groups = [
        {key: tuple(value) if isinstance(current.get(key), tuple) else value for key, value in tensors(group).items()}
        for group, current in zip(saved["groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
