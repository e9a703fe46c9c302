"""Heads: from the network's output to an action.

A head says what `Agent.forward` returns, what explores on it, and how to act without exploration, on the host in NumPy;
heads with a distribution also say its log-probabilities and entropy, on `keras.ops` for losses.
"""

from noterl.heads.base import Head, Q, random_actions

__all__ = ["Head", "Q", "random_actions"]
