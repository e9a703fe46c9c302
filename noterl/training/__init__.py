"""Training: the loop of `fit`, callbacks and state; evaluation and animation."""
