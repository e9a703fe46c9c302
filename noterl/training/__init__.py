"""Training: the loop of `fit`, its callbacks and its state; evaluation and animation."""
