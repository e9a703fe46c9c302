"""The algorithms, one file each; `actor_critic` has the base class of PPO, A2C, TRPO and ACER."""
