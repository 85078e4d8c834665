"""What members, scripts and agents do with training data from rollouts."""

from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.operations.declaration import operation
from backend.operations.schemas import Download
from backend.training import sft_data
from backend.training.schemas import DownloadSft, MarkDemonstrations, MarkedDemonstrations, SftFilter, SftPreview
from backend.web.identity import Actor


@operation("GET /sft", role=Role.VIEWER)
def preview_sft(session: Session, actor: Actor, request: SftFilter) -> SftPreview:
    """Preview training data from rollouts: numbers of conversations, repeats and tokens, with samples."""
    return sft_data.preview(session, request)


@operation("GET /sft/file", role=Role.VIEWER)
def download_sft(session: Session, actor: Actor, request: DownloadSft) -> Download:
    """Download training data from rollouts as chat JSONL, or as a zipped folder for Hugging Face's `datasets`."""
    return sft_data.download(session, request, request.format)


@operation("POST /sft/demonstrations", role=Role.TRAINER, audited=False)
def mark_demonstrations(session: Session, actor: Actor, request: MarkDemonstrations) -> MarkedDemonstrations:
    """Mark rollouts as demonstrations for the SFT warm-up, or remove the mark. Held-out tasks are never marked."""
    changed = sft_data.mark_demonstrations(session, actor, request, is_wanted=request.is_wanted)
    return MarkedDemonstrations(changed=changed)
