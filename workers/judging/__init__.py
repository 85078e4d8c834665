"""Whether rewards can be trusted: the checks of an environment version and the detectors over stored rollouts.

Everything here takes data in and gives data out; `workers.jobs` loads and records.
"""
