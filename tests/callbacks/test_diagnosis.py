"""Each rule of the doctor finds its fault in measured series, and none finds one in healthy series."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from noterl.callbacks.support.diagnosis import RULES, diagnose

pytestmark = pytest.mark.backend_free

RISING = np.linspace(0.2, 1.0, 8)
HEALTHY: dict[str, Any] = {
    # Columns of logs, with a value for each episode
    "reward": np.linspace(20, 400, 40) + np.arange(40) % 3,
    "length": np.linspace(20, 400, 40) + np.arange(40) % 3,
    "steps": np.arange(1, 41) * 100.0,
    "updates": np.arange(40.0),
    "entropy": np.append([np.nan, np.nan], np.linspace(0.69, 0.4, 38)),  # the first episodes have no metrics
    "value_loss": np.full(40, 50.0),
    "approximate_kl": np.full(40, 0.01),
    "clip_fraction": np.full(40, 0.1),
    "evaluation_reward_mean": np.linspace(20, 450, 40),
    # Measurements
    "terminated": np.full(8, 5.0),
    "truncated": np.zeros(8),
    "constant_share": np.zeros(8),
    "observation_scale": np.ones(8),
    "reward_mean": np.ones(8),
    "reward_size": np.ones(8),
    "reward_largest": np.ones(8),
    "large_actions_differ": np.ones(8),
    "actions_at_bounds": np.full(8, 0.3),
    "gamma": np.full(8, 0.99),
    "capacity": np.full(8, 10_000.0),
    "batch_size": np.full(8, 64.0),
    "epsilon": 1.05 - RISING,
    "updates_before": np.zeros(8),
    "temperature": np.full(8, 0.2),
    "entropy_coefficient": np.full(8, 0.01),
    "gradient_limit": np.full(8, 0.5),
    "least_movement": RISING / 10,
    "most_movement": RISING,
    "target_movement": RISING / 10,
    "updates_so_far": RISING * 1_000,
    "dead_share": np.full(8, 0.3),
    "saturated_share": RISING / 2,
    "policy_direction": np.full(8, 0.1) + RISING / 100,
    "value_mean": RISING * 50,
    "value_largest": RISING * 60,
    "explained_variance": RISING / 2,
    "starts": np.zeros(8),
    "reference": np.full(8, 22.0),
    "progress": RISING,
}
ZEROS = np.zeros(8)
FAULTS: dict[str, dict[str, Any]] = {
    "truncation_as_termination": {"length": np.full(40, 200.0)},
    "termination_as_truncation": {"terminated": ZEROS, "truncated": np.full(8, 5.0)},
    "observations_without_information": {"constant_share": np.full(8, 0.75)},
    "observations_unscaled": {"observation_scale": np.full(8, 500.0)},
    "reward_scale": {"reward_size": np.full(8, 1_000.0)},
    "actions_clipped": {"large_actions_differ": ZEROS},
    "gamma_low": {"gamma": ZEROS},
    "memory_small": {"capacity": np.full(8, 50.0)},
    "epsilon_high": {"epsilon": np.ones(8)},
    "epsilon_low": {"epsilon": ZEROS},
    "temperature_high": {"temperature": np.full(8, 20.0)},
    "entropy_coefficient_high": {"entropy_coefficient": np.ones(8), "entropy": np.append(np.nan, np.full(39, 0.69))},
    "gradients_clipped": {"gradient_limit": np.full(8, 1e-4)},
    "learning_rate_high": {"most_movement": RISING * 20},
    "dead_units": {"dead_share": np.ones(8)},
    "saturated_units": {"saturated_share": np.ones(8)},
    "frozen_network": {"least_movement": ZEROS},
    "target_never_updated": {"target_movement": ZEROS},
    "learning_rate_low": {"most_movement": RISING / 1_000, "least_movement": RISING / 1_000},
    "policy_against_advantages": {"policy_direction": -np.full(8, 0.1) - RISING / 100},
    "values_against_returns": {"value_mean": -RISING * 50},
    "values_diverge": {"value_largest": RISING * 1_000},
    "entropy_collapsed": {
        "entropy": np.linspace(0.69, 0.001, 40),
        "reward": np.full(40, 25.0) + 9 * (np.arange(40) < 8),
    },
    "policy_changes_too_much": {"approximate_kl": np.full(40, 0.5)},
    "value_loss_large": {"value_loss": np.full(40, 1e7)},
    "values_explain_nothing": {"explained_variance": np.full(8, -2.0)},
    "actions_at_bounds": {"actions_at_bounds": np.ones(8)},
    "evaluation_falls": {"evaluation_reward_mean": np.append(np.linspace(20, 450, 30), np.full(10, 30.0))},
    "no_better_than_random": {"reference": np.full(8, 1_000.0)},
}


def test_healthy_series_have_no_findings() -> None:
    assert diagnose(HEALTHY) == []


def test_every_rule_has_a_case() -> None:
    assert {rule.__name__ for rule in RULES} == set(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_first(name: str) -> None:
    first = diagnose(HEALTHY | FAULTS[name])[0]
    assert first.name == name
    assert first.message.endswith(".") and "{" not in first.message
    assert first.advice.endswith(".") and "Advice" not in first.message
    assert first.evidence and all(isinstance(value, float) for value in first.evidence.values())


@pytest.mark.parametrize("count", [0, 3])
def test_short_and_missing_series_are_skipped(count: int) -> None:
    faulty = {name: values for fault in FAULTS.values() for name, values in fault.items()}
    assert diagnose({name: values[:count] for name, values in (HEALTHY | faulty).items()}) == []


def test_cause_comes_before_symptoms() -> None:
    names = [finding.name for finding in diagnose(HEALTHY | FAULTS["epsilon_high"] | FAULTS["no_better_than_random"])]
    assert names == ["epsilon_high", "no_better_than_random"]


def test_missing_values_are_no_finding() -> None:
    assert diagnose({name: np.full(len(values), np.nan) for name, values in HEALTHY.items()}) == []


def test_entropy_of_a_box_may_fall_below_zero() -> None:
    worse = np.full(40, 25.0) + 9 * (np.arange(40) < 8)
    for last, names in ((-1.0, []), (-6.0, ["entropy_collapsed"])):
        series = {**HEALTHY, "entropy": np.linspace(1.4, last, 40), "reward": worse}
        found = [finding.name for finding in diagnose(series)]
        assert [name for name in found if name == "entropy_collapsed"] == names
