"""Replay memories: transitions that are stored and sampled again."""

from noterl.replay.hindsight import Hindsight as Hindsight
from noterl.replay.prioritized import Prioritized as Prioritized
from noterl.replay.prioritized import RatioScore as RatioScore
from noterl.replay.prioritized import Score as Score
from noterl.replay.relabel import Relabel as Relabel
from noterl.replay.relabel import Triplets as Triplets
from noterl.replay.replay import Replay as Replay
from noterl.replay.replay import bytes_needed as bytes_needed
from noterl.replay.samplers import Sample as Sample
from noterl.replay.samplers import Sampler as Sampler
from noterl.replay.samplers import Uniform as Uniform
