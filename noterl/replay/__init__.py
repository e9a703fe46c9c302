"""Replay memories: transitions that are stored and sampled again."""

from noterl.replay.hindsight import Hindsight
from noterl.replay.prioritized import Prioritized, RatioScore, Score
from noterl.replay.relabel import Relabel, Triplets
from noterl.replay.replay import Replay, bytes_needed
from noterl.replay.samplers import Sample, Sampler, Uniform

__all__ = [
    "Hindsight",
    "Prioritized",
    "RatioScore",
    "Relabel",
    "Replay",
    "Sample",
    "Sampler",
    "Score",
    "Triplets",
    "Uniform",
    "bytes_needed",
]
