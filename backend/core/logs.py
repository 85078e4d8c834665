"""Structured logs: one JSON object per line on standard error, with the bound context (run, job, process)."""

import logging
import sys

import structlog

_SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure_logging(process: str, level: int = logging.INFO) -> None:
    """Send all logs of this process, from `structlog` and `logging`, to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(json_formatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def json_formatter(process: str) -> logging.Formatter:
    """Return the formatter, which uvicorn's configuration `backend/logging.json` also uses."""
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            lambda _logger, _method, event: {**event, "process": process},
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
