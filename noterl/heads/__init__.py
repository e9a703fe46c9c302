"""Heads: from the network's output to an action.

A head says what `Agent.forward` returns, what explores on it, and how to act without exploration, on the host in NumPy;
heads with a distribution also say its log-probabilities and entropy, on `keras.ops` for losses. `Joint` is the head of
several agents.
"""

from noterl.heads.base import Head, Q, one_of, random_actions
from noterl.heads.bounded import Bounded, Deterministic, SquashedGaussian
from noterl.heads.joint import Joint
from noterl.heads.stochastic import Categorical, Gaussian

__all__ = [
    "Bounded",
    "Categorical",
    "Deterministic",
    "Gaussian",
    "Head",
    "Joint",
    "Q",
    "SquashedGaussian",
    "one_of",
    "random_actions",
]
