"""An error that is logged in a test's own process is told in plain lines: drawing all variables of all frames, as
structlog does where nobody has set logs up, takes seconds."""

import structlog

structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
