"""Studies of a training run over its checkpoints: when did a hack begin, and how much reasoning does it need?"""
