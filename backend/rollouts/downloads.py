"""Answers that are written while they leave. Each has a transaction of its own: the request's is over by then."""

import uuid
from collections.abc import Iterator

from fastapi import Request
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from backend.rollouts import export_queries
from backend.rollouts.exchange_schemas import ExportQuery, SftFilter, SftFormat
from backend.rollouts.export import KINDS, file_name, write_export
from backend.rollouts.formats import chat
from backend.rollouts.formats.streams import Plain, outgoing
from backend.runs import queries as run_queries
from backend.training import sft_data


def export(request: Request, session: Session, run_id: uuid.UUID, wanted: ExportQuery) -> StreamingResponse:
    """A run's rollouts. What is wrong with the request is found before the first byte leaves."""
    run = run_queries.get_run(session, run_id)
    facts = export_queries.facts_of(session, run, wanted.where.strip())
    splits = export_queries.splits_of(session, run, wanted.where)

    def content() -> Iterator[bytes]:
        with request.app.state.transaction() as session:
            yield from write_export(
                wanted.format,
                facts,
                splits,
                lambda split: export_queries.records(session, run, facts, where=wanted.where, split=split),
            )

    return _download(content(), file_name(wanted.format, facts), KINDS[wanted.format].media_type)


def sft(request: Request, session: Session, wanted: SftFilter, kind: SftFormat) -> StreamingResponse:
    told = sft_data.told(session, wanted)

    def content() -> Iterator[bytes]:
        with request.app.state.transaction() as session:
            rows: Iterator[Plain] = sft_data.conversations(session, wanted)
            if kind == "jsonl":
                yield from outgoing(lambda out: chat.write_jsonl(out, rows))
            else:
                yield from outgoing(lambda out: chat.write_folder(out, rows, told))

    name = "sft.jsonl" if kind == "jsonl" else "sft.zip"
    return _download(content(), name, "application/x-ndjson" if kind == "jsonl" else "application/zip")


def _download(content: Iterator[bytes], name: str, media_type: str) -> StreamingResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingResponse(content, media_type=media_type, headers=headers)
