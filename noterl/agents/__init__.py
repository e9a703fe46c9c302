"""The algorithms, one file each; `actor_critic` has the base class of PPO, A2C, TRPO and ACER.

`distributional` has the base class of QRDQN, C51 and IQN, and `ensemble` has the one of TD3, SAC, TQC and
CrossQ.
"""
