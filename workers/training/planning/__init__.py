"""What a training run plays when: warm-up, every GRPO step, examinations; over levels and over environments.

Everything is a function of the configuration and, where the curriculum adapts, of the rollouts so far, so that a
resumed run plays what an uninterrupted one would have played.
"""
