"""Ranges and default search spaces."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import noterl
from noterl.tune import Choice, Float, Int, OneMinus
from noterl.tune.ranges import sample
from noterl.tune.spaces import SPACES
from noterl.tune.trial import split


class Trial:
    """Suggests the bound or choice of a position, and records what was asked."""

    def __init__(self, position: int = 0) -> None:
        self.position, self.asked = position, {}

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        self.asked[name] = (low, high, log)
        return (low, high)[self.position % 2]

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int:
        self.asked[name] = (low, high, log)
        return (low, high)[self.position % 2]

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        self.asked[name] = tuple(choices)
        return choices[self.position % len(choices)]


@pytest.mark.backend_free
def test_ranges_ask_for_their_bounds() -> None:
    trial = Trial(1)
    space = {"a": Float(0.1, 2.0), "b": Float(1e-5, 1, log=True), "c": Int(1, 9), "d": Choice(1, "x"), "e": (64,)}
    values = sample(space, trial)
    assert values == {"a": 2.0, "b": 1.0, "c": 9, "d": "x", "e": (64,)}
    assert trial.asked == {"a": (0.1, 2.0, False), "b": (1e-5, 1.0, True), "c": (1, 9, False), "d": (1, "x")}


@pytest.mark.backend_free
def test_choices_of_other_kinds_are_labelled() -> None:
    trial = Trial(1)
    assert Choice((64,), (64, 64)).suggest(trial, "hidden") == (64, 64)
    assert Choice(1, True).suggest(trial, "equal") is True
    assert trial.asked == {"hidden": ("(64,)", "(64, 64)"), "equal": ("1", "True")}


@pytest.mark.backend_free
def test_choices_without_names_of_their_own_are_labelled_by_position() -> None:
    first, second, trial = (lambda: 1), (lambda: 2), Trial(1)
    assert Choice(first, second).suggest(trial, "networks") is second
    assert Choice(object(), Trial, dict).suggest(trial, "other") is Trial
    name = "test_choices_without_names_of_their_own_are_labelled_by_position.<locals>.<lambda>"
    assert trial.asked == {
        "networks": (f"0: {name}", f"1: {name}"),
        "other": ("0: object", "1: Trial", "2: dict"),
    }


class Same:
    def __repr__(self) -> str:
        return "Same()"


@pytest.mark.backend_free
def test_choices_of_equal_texts_are_told_apart() -> None:
    first, second = Same(), Same()
    assert Choice(first, second).suggest(Trial(1), "x") is second


@pytest.mark.backend_free
def test_one_minus_samples_the_distance_from_one() -> None:
    trial = Trial(0)
    assert OneMinus(0.01, 0.1).suggest(trial, "gamma") == 0.99
    assert trial.asked == {"one_minus_gamma": (0.01, 0.1, True)}


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Float(1, 0), "high"), (lambda: Float(0, 1, log=True), "low"), (lambda: Int(1.5, 2), "low"),
        (lambda: Int(3, 3), "high"), (lambda: Choice(1), "values"), (lambda: OneMinus(0, 1), "low"),
        (lambda: Float("a", 1), "low"),
    ],
)  # fmt: skip
def test_invalid_range_raises(make: Any, argument: str) -> None:
    with pytest.raises(ValueError, match=f"^{argument}"):
        make()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("name", SPACES)
def test_default_space_fits_the_algorithm(name: str, position: int) -> None:
    if not hasattr(noterl, name):
        pytest.skip(f"there is no noterl.{name}")
    bounded = ("CrossQ", "DDPG", "TD3", "SAC", "TQC", "TD3BC", "ReBRAC")
    env = "Pendulum-v1" if name in bounded else "CartPole-v1"
    kind = getattr(noterl, name)
    built, compiled, fitted = split(kind, SPACES[name](Trial(position), 10_000))
    assert not fitted and len(built) > 1 and len(compiled) > 0
    agent = kind(env, seed=1, **built)
    agent.compile(**{**compiled, "replay": 4096} if "replay" in compiled else compiled)


def test_values_are_split_by_signature() -> None:
    values = {"gamma": 0.9, "batch_size": 8, "num_envs": 2}
    assert split(noterl.DQN, values) == ({"gamma": 0.9}, {"batch_size": 8}, {"num_envs": 2})
    with pytest.raises(ValueError, match="'gamma'"):
        split(noterl.DQN, {"gama": 0.9})
    assert "env" in inspect.signature(noterl.DQN).parameters
    with pytest.raises(ValueError, match="'env'"):
        split(noterl.DQN, {"env": "CartPole-v1"})
