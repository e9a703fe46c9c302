"""The algorithms, one file each; `actor_critic` is what PPO and A2C share."""
