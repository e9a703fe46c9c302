"""Heads: from a network's output to an action.

A head defines what `Agent.forward` must return, the deterministic action, and how the agent explores. Actions are
computed on the host, in NumPy. Heads with a distribution also compute log-probabilities and entropies for losses. These
need a backend, which is imported when they are first called. `Joint` is the head of several agents.
"""

from noterl.heads.base import Head, Q, members, one_of, random_actions
from noterl.heads.bounded import Deterministic, SquashedGaussian
from noterl.heads.joint import Joint
from noterl.heads.policy_value import PolicyValue
from noterl.heads.stochastic import Bernoulli, Categorical, Gaussian, Probabilities
