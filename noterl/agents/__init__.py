"""The algorithms, one file each; `actor_critic` has the base class of PPO, A2C, TRPO and ACER.

`continuous_acer` has the part of ACER for Box actions.
"""
