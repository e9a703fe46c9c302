"""Heads: from a network's output to an action.

A head defines what `Agent.forward` must return, the deterministic action, and how the agent explores. Actions are
computed on the host, in NumPy. Heads with a distribution also compute log-probabilities and entropies for losses. These
need a backend, which is imported when they are first called. `Joint` is the head of several agents.
"""

from noterl.heads.base import Head as Head
from noterl.heads.base import Q as Q
from noterl.heads.base import members as members
from noterl.heads.base import one_of as one_of
from noterl.heads.base import random_actions as random_actions
from noterl.heads.bounded import Deterministic as Deterministic
from noterl.heads.bounded import SquashedGaussian as SquashedGaussian
from noterl.heads.joint import Joint as Joint
from noterl.heads.policy_value import PolicyValue as PolicyValue
from noterl.heads.stochastic import Bernoulli as Bernoulli
from noterl.heads.stochastic import Categorical as Categorical
from noterl.heads.stochastic import Gaussian as Gaussian
from noterl.heads.stochastic import Probabilities as Probabilities
