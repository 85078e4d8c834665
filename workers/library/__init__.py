"""Built-in environments, each a complete OpenEnv package, and the templates that new ones start from.

The folders are data: `backend.environments.library` reads them, env servers run them.
"""
