"""What a data set holds, and what looks wrong in it."""

from __future__ import annotations

from typing import Any

from noterl.data.rows import digest, outside

# Sentences about what was found when rows were read, by the names in `Dataset.origin`.
_ORIGINS = {
    "inferred_spaces": "no spaces are stored, so the spaces were inferred from the values",
    "without_timeouts": "the key 'timeouts' is missing: ends by a time limit are unknown",
    "left_out": "{:,} transitions before a timeout were left out, because the key 'next_observations' is missing",
    "cut": "{:,} episodes were cut, because the next observation of a row is not the observation of the next row",
}
# From this share of all episodes on, terminations after the largest number of steps look like a time limit.
_LIMIT_SHARE = 0.1


def describe(dataset: Any) -> dict[str, Any]:
    """Return figures of a `Dataset` by name, and the list "warnings"; `Dataset.describe` documents the names."""
    terminated = int(dataset.terminated.sum())
    figures = {
        "observation_space": str(dataset.observation_space),
        "action_space": str(dataset.action_space),
        "transitions": len(dataset),
        "episodes": len(dataset.lengths),
        "terminated": terminated,
        "truncated": len(dataset.lengths) - terminated,
        "left_out": dataset.origin.get("left_out", 0),
    }
    for name, values in (("return", dataset.returns), ("length", dataset.lengths)):
        for statistic in ("mean", "std", "min", "max"):
            figures[f"{name}_{statistic}"] = getattr(values, statistic)().item()
    return {**figures, "warnings": _warnings(dataset)}


def _warnings(dataset: Any) -> list[str]:
    """Return a sentence for each fact that looks wrong."""
    sentences = [text.format(dataset.origin[name]) for name, text in _ORIGINS.items() if name in dataset.origin]
    longest = dataset.lengths.max()
    at_limit = (dataset.terminated & (dataset.lengths == longest)).sum()
    if at_limit > 1 and longest > 1 and at_limit >= _LIMIT_SHARE * len(dataset.lengths):
        sentences.append(
            f"{at_limit:,} episodes end by termination after exactly {longest:,} steps, the largest number: truncation "
            "may be recorded as termination"
        )
    wrong = outside(dataset.actions, dataset.action_space).reshape(len(dataset), -1).any(axis=1).sum()
    if wrong:
        sentences.append(f"{wrong:,} transitions have actions outside the bounds of {dataset.action_space}")
    if (dataset.rewards == dataset.rewards[0]).all():
        sentences.append(f"the rewards are constant: all are {dataset.rewards[0]:.4g}")
    # Whether the environment terminated an episode does not make another episode of it.
    duplicates = len(dataset.lengths) - len({digest(*episode[:3]) for episode in dataset.episodes})
    if duplicates:
        sentences.append(f"{duplicates:,} episodes are duplicated")
    return sentences
