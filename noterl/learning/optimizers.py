"""Optimizers: taking what the user gave to `compile`, making its rules live, and saying its state.

Owns: the difference between a Keras optimizer and a native torch one, outside the backends.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends import keras
from noterl.hyperparameters import Hyperparameter
from noterl.schedules import Schedule
from noterl.utils.schema import Array, Constant, check

# For each variable, the axes that bring it into Keras's layout, or None where it lies so.
Layout = Callable[[Sequence[keras.Variable]], list[tuple[int, ...] | None]]

# Rules of Keras optimizers that callbacks may change; the learning rate Keras itself keeps in a variable.
_LIVE_RULES = {"beta_1": (0.0, 1.0), "beta_2": (0.0, 1.0), "weight_decay": (0.0, None)}


def resolve(given: Any, names: Sequence[str], learning_rate: float) -> dict[str, Any]:
    """Return one optimizer (or function that makes one) for each name.

    Args:
        given: None, one optimizer, a list in the order of `names`, or a dict by name.
        names: the agent's `optimizer_names`.
        learning_rate: of the default, Adam.

    Raises:
        ValueError: naming `optimizer`, for anything else or an optimizer of a framework that is not the backend.
    """
    if given is None:
        given = keras.optimizers.Adam(learning_rate)
    if isinstance(given, Mapping):
        if set(given) != set(names):
            raise ValueError(f"optimizer must have the keys {sorted(names)}, got {sorted(map(str, given))}")
        chosen = dict(given)
    elif isinstance(given, list | tuple):
        if len(given) != len(names):
            raise ValueError(f"optimizer must list {len(names)} optimizers, for {', '.join(names)}; got {len(given)}")
        chosen = dict(zip(names, given, strict=True))
    else:
        if _is_torch(given) and len(names) > 1:
            raise ValueError(f"optimizer: a torch optimizer cannot be shared by {', '.join(names)}; pass a dict")
        chosen = dict.fromkeys(names, given)
    return {name: _own(optimizer, name) for name, optimizer in chosen.items()}


def _own(optimizer: Any, name: str) -> Any:
    """Return an optimizer that is the agent's own."""
    if isinstance(optimizer, str):
        try:
            return keras.optimizers.get(optimizer)
        except ValueError as error:
            raise ValueError(f"optimizer: Keras knows no {optimizer!r}") from error
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return plain(optimizer)
    if _is_torch(optimizer) or _makes_torch(optimizer):
        if backends.name() != "torch":
            kind = type(optimizer).__name__ if _is_torch(optimizer) else "a function of parameters"
            raise ValueError(
                f"optimizer: {kind} needs the torch backend, but this process runs on {backends.name()}: set "
                "KERAS_BACKEND=torch before Keras is imported, or pass a keras.optimizers.Optimizer"
            )
        _refuse_closures(optimizer)
        return optimizer
    raise ValueError(
        f"optimizer for {name!r} must be a keras.optimizers.Optimizer, its name, or with KERAS_BACKEND=torch a "
        f"torch.optim.Optimizer or a function parameters -> optimizer; got {optimizer!r}"
    )


def plain(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return a fresh Keras optimizer with the present rules of this one, and none of its state.

    A learning rate that follows one of our schedules is a plain number to Keras; `schedule_of` tells.
    """
    config, schedule = optimizer.get_config(), schedule_of(optimizer)
    numbers = {key: float(value) if isinstance(value, keras.Variable) else value for key, value in config.items()}
    if schedule is None:
        return type(optimizer).from_config(numbers)
    fresh = type(optimizer).from_config({**numbers, "learning_rate": schedule(0)})
    fresh.noterl_schedule = schedule
    return fresh


def schedule_of(optimizer: Any) -> Schedule | None:
    """Return the schedule of ours that the learning rate follows, or None."""
    given = getattr(optimizer, "_learning_rate", None)
    return given if isinstance(given, Schedule) else getattr(optimizer, "noterl_schedule", None)


def follow(optimizer: Any, step: int) -> None:
    """Bring the learning rate to its schedule's value after `step` environment steps.

    Raises:
        ValueError: if that is no finite number from 0.
    """
    schedule = schedule_of(optimizer)
    if schedule is not None:
        rate = schedule(step)
        if not (math.isfinite(rate) and rate >= 0.0):
            raise ValueError(f"learning_rate must be finite and at least 0, but {schedule!r} gives {rate!r} at {step}")
        optimizer.learning_rate = rate


def build(optimizer: Any, variables: Sequence[keras.Variable]) -> Any:
    """Return the optimizer ready to train `variables`, its rules live."""
    if isinstance(optimizer, keras.optimizers.Optimizer):
        if not optimizer.built:
            optimizer.build(list(variables))
            _make_live(optimizer)
        return optimizer
    if not _is_torch(optimizer):
        optimizer = optimizer([variable.value for variable in variables])
        if not _is_torch(optimizer):
            raise ValueError(f"optimizer: the function must return a torch.optim.Optimizer, got {optimizer!r}")
        _refuse_closures(optimizer)
    held = {id(variable) for variable in held_of(optimizer, variables)}
    missing = [variable.name for variable in variables if id(variable) not in held]
    if missing:
        raise ValueError(f"optimizer holds other parameters than the agent trains: {', '.join(missing)} are missing")
    return optimizer


def held_of(optimizer: Any, variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """Return those of the variables that a torch optimizer was made for; none of one that is made, or built, later."""
    groups = optimizer.param_groups if _is_torch(optimizer) else []
    held = {id(parameter) for group in groups for parameter in group["params"]}
    return [variable for variable in variables if id(variable.value) in held]


def _make_live(optimizer: keras.optimizers.Optimizer) -> None:
    """Turn rules that Keras would bake into a trace into variables; eager torch reads plain numbers each time."""
    if backends.name() == "torch":
        return
    optimizer.noterl_live = {}
    for rule, (minimum, maximum) in _LIVE_RULES.items():
        value = getattr(optimizer, rule, None)
        if isinstance(value, float | int) and not isinstance(value, bool):
            live = optimizer.noterl_live[rule] = Hyperparameter(value, rule, minimum=minimum, maximum=maximum)
            setattr(optimizer, rule, live)


def followers(optimizer: Any) -> list[Callable[[int], None]]:
    """Return what the loop calls with the steps so far, before each group of updates."""
    scheduled = [partial(follow, optimizer)] if schedule_of(optimizer) is not None else []
    live = [lambda step: keep_live(optimizer)] if getattr(optimizer, "noterl_live", None) else []
    return [*scheduled, *live]


def keep_live(optimizer: Any) -> None:
    """Take numbers that were set in the place of live rules (`optimizer.beta_1 = 0.5`), which a trace would not see.

    Raises:
        ValueError: naming the rule, if the number is out of bounds; the rule stays as it was.
    """
    for rule, live in getattr(optimizer, "noterl_live", {}).items():
        value = getattr(optimizer, rule)
        if value is not live:
            setattr(optimizer, rule, live)
            live.assign(value)


def _is_torch(optimizer: Any) -> bool:
    return any(base.__module__.startswith("torch.optim") for base in type(optimizer).__mro__)


def _makes_torch(optimizer: Any) -> bool:
    """Whether it is a function of parameters, as a class of torch is too."""
    if isinstance(optimizer, type):
        return any(base.__module__.startswith("torch.optim") for base in optimizer.__mro__)
    return callable(optimizer)


def _refuse_closures(optimizer: Any) -> None:
    """Raise a ValueError for a torch optimizer, or a class of them, that takes the loss several times in a step."""
    step = getattr(optimizer, "step", None)
    closure = inspect.signature(step).parameters.get("closure") if callable(step) else None
    if closure is not None and closure.default is closure.empty:
        name = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise ValueError(
            f"optimizer must take one gradient for each of its steps, got torch's {name}: its step must be given a "
            "closure that takes the loss again"
        )


def get_rule(optimizer: Any, rule: str) -> float:
    """Return the present value of `learning_rate`, `beta_1`, `beta_2` or `weight_decay`.

    Raises:
        ValueError: naming the rule, if the optimizer has none of that name.
    """
    if _is_torch(optimizer):
        group = optimizer.param_groups[0]
        if rule in ("beta_1", "beta_2") and "betas" in group:
            return float(group["betas"][rule == "beta_2"])
        key = "lr" if rule == "learning_rate" else rule
        if key in group:
            return float(group[key])
    elif rule == "learning_rate" and hasattr(optimizer, rule):
        return float(backends.current().fetch(optimizer.learning_rate))
    elif getattr(optimizer, rule, None) is not None:
        return float(getattr(optimizer, rule))
    raise ValueError(f"the optimizer {type(optimizer).__name__} has no rule {rule!r}")


def set_rule(optimizer: Any, rule: str, value: float) -> None:
    """Set what `get_rule` returned; takes effect with the next update and does not retrace.

    Raises:
        ValueError: naming the rule, if the optimizer has none of that name, the value is out of bounds, or a schedule
            would overrule it.
    """
    get_rule(optimizer, rule)
    if rule == "learning_rate" and schedule_of(optimizer) is not None:
        raise ValueError(f"{rule} follows {schedule_of(optimizer)!r}, which would overrule {value!r}")
    low, high = _LIVE_RULES.get(rule, (0.0, None))
    if not math.isfinite(value) or not low <= value <= (math.inf if high is None else high):
        raise ValueError(f"{rule} must be a finite number from {low} to {high or 'infinity'}, got {value!r}")
    if _is_torch(optimizer):
        for group in optimizer.param_groups:
            if rule in ("beta_1", "beta_2"):
                first, second = group["betas"]
                group["betas"] = (value, second) if rule == "beta_1" else (first, value)
            else:
                group["lr" if rule == "learning_rate" else rule] = value
    elif rule == "learning_rate":
        optimizer.learning_rate = value
    elif isinstance(getattr(optimizer, rule), Hyperparameter):
        getattr(optimizer, rule).assign(value)
    else:
        setattr(optimizer, rule, value)


def get_state(optimizer: Any, layout: Layout) -> dict[str, Any]:
    """Return the optimizer's state; slots lie as their variables do in Keras's layout.

    Args:
        optimizer: a built optimizer.
        layout: tells, for each variable, the axes that bring it into Keras's layout, or None.
    """
    if _is_torch(optimizer):
        return _torch_state(optimizer)
    keep_live(optimizer)
    fetch = backends.current().fetch
    axes = layout(optimizer._trainable_variables)
    slots = {
        name: [fetch(v) if order is None else fetch(v).transpose(order) for v, order in zip(found, axes, strict=True)]
        for name, found in _slots(optimizer).items()
    }
    rules = {
        rule: float(getattr(optimizer, rule)) for rule in _LIVE_RULES if getattr(optimizer, rule, None) is not None
    }
    scalars = [fetch(v) for v in _scalars(optimizer)]
    return {"class": type(optimizer).__name__, "scalars": scalars, "slots": slots, "rules": rules}


def check_state(optimizer: Any, state: dict[str, Any], layout: Layout) -> None:
    """Raise a ValueError if the state is of another optimizer, or of other variables."""
    if _is_torch(optimizer) != ("torch" in state):
        raise ValueError("the state is of an optimizer of another framework (Keras or torch.optim)")
    saved, kind = state.get("torch", state)["class"], type(optimizer).__name__
    if saved != kind:
        raise ValueError(f"the state is of the optimizer {saved!r}, the agent has {kind}")
    if _is_torch(optimizer):
        return
    axes = layout(optimizer._trainable_variables)
    slots = {
        name: [Array(shape=v.shape if order is None else [v.shape[axis] for axis in order]) for v, order in pairs]
        for name, pairs in ((name, zip(found, axes, strict=True)) for name, found in _slots(optimizer).items())
    }
    schema = {
        "class": Constant(kind),
        "scalars": [Array(shape=v.shape) for v in _scalars(optimizer)],
        "slots": slots,
        "rules": {rule: float for rule in _LIVE_RULES if getattr(optimizer, rule, None) is not None},
    }
    check(state, schema, f"the state of the optimizer {kind}")


def set_state(optimizer: Any, state: dict[str, Any], layout: Layout) -> None:
    """Take what `get_state` returned, after `check_state`."""
    if _is_torch(optimizer):
        _set_torch_state(optimizer, state)
        return
    keep_live(optimizer)
    axes = layout(optimizer._trainable_variables)
    for name, found in _slots(optimizer).items():
        for variable, value, order in zip(found, state["slots"][name], axes, strict=True):
            variable.assign(value if order is None else np.transpose(value, np.argsort(order)))
    for variable, value in zip(_scalars(optimizer), state["scalars"], strict=True):
        variable.assign(value)
    for rule, value in state["rules"].items():
        set_rule(optimizer, rule, value)


def variables(optimizer: Any) -> list[keras.Variable]:
    """Return every variable of an optimizer: what a compiled update must know.

    Native torch ones have none, nor has a function that has yet to make the optimizer.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return []
    live = (getattr(optimizer, rule, None) for rule in _LIVE_RULES)
    return [*optimizer.variables, *(rule for rule in live if isinstance(rule, Hyperparameter))]


def _slots(optimizer: keras.optimizers.Optimizer) -> dict[str, list[keras.Variable]]:
    """Return the optimizer's lists of one variable per trained variable, by name (momentums, velocities ...)."""
    count = len(optimizer._trainable_variables)
    slots = {}
    for name, value in vars(optimizer).items():
        if name == "_trainable_variables" or not isinstance(value, list) or len(value) != count or not count:
            continue
        if all(
            isinstance(slot, keras.Variable) and slot.shape == variable.shape
            for slot, variable in zip(value, optimizer._trainable_variables, strict=True)
        ):
            slots[name.strip("_")] = value
    return dict(sorted(slots.items()))


def _scalars(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return what is no slot: iterations, learning rate, and whatever else an optimizer keeps."""
    apart = {id(variable) for slot in _slots(optimizer).values() for variable in slot}
    # Live rules are variables on two of the backends alone, and are saved by name.
    apart |= {id(value) for value in vars(optimizer).values() if isinstance(value, Hyperparameter)}
    return [variable for variable in optimizer.variables if id(variable) not in apart]


def _torch_state(optimizer: Any) -> dict[str, Any]:
    state = optimizer.state_dict()

    def plain_value(value: Any) -> Any:
        if hasattr(value, "detach"):
            return backends.current().fetch(value)
        return list(value) if isinstance(value, tuple) else value

    def plain_dict(values: Mapping[Any, Any]) -> dict[str, Any]:
        return {str(key): plain_value(value) for key, value in values.items()}

    slots = {str(index): plain_dict(values) for index, values in state["state"].items()}
    groups = [plain_dict(group) for group in state["param_groups"]]
    return {"torch": {"class": type(optimizer).__name__, "state": slots, "groups": groups}}


def _set_torch_state(optimizer: Any, state: dict[str, Any]) -> None:
    def tensors(values: dict[str, Any]) -> dict[str, Any]:
        convert = keras.ops.convert_to_tensor
        return {key: convert(v.copy()) if isinstance(v, np.ndarray) else v for key, v in values.items()}

    saved = state["torch"]
    slots = {int(index): tensors(values) for index, values in saved["state"].items()}
    groups = [
        {key: tuple(v) if isinstance(present.get(key), tuple) else v for key, v in tensors(group).items()}
        for group, present in zip(saved["groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
