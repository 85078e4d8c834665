"""Several processes for one training run: how they are started, how they talk, and how work is shared among them."""
