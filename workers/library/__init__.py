"""Built-in environments, and the templates that new ones start from.

The folders are data: `backend.environments.library` reads them, env servers run them. Each holds what its author
wrote; `scaffold` has the standard files that `backend.environments.scaffold` adds to make a complete OpenEnv package,
and `exported` what only an export adds.
"""
