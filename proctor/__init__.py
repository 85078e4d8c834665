"""The Python client of Proctor: author, run and judge RL environments from scripts and notebooks.

from proctor import Client

client = Client()  # PROCTOR_URL and PROCTOR_TOKEN, or the arguments
run = client.runs.evaluate(environment="tictactoe", policy="random", tasks=100)
run = client.wait(run)
frame = client.rollouts.table(run.id).to_pandas()
"""

from proctor.client import Client, Json, ProctorError

__all__ = ["Client", "Json", "ProctorError"]
