"""The env host, which launches and jails environment servers, and the client that speaks OpenEnv's wire to them.

`client.py` is what other parts import. `inside/` runs in the environments' own interpreters: standard library only.
"""
