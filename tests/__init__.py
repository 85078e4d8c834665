"""Errors logged in a test's own process are printed as plain lines. Rendering all variables of all frames, as structlog
does by default, takes seconds.
"""

import structlog

structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
