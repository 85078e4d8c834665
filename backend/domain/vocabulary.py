"""Stored words: roles, kinds, statuses and reasons. One spelling in SQL, Python, JSON and HTML."""

from enum import StrEnum


class Role(StrEnum):
    """Roles of members. Each role includes the rights of the roles before it."""

    VIEWER = "viewer"
    REVIEWER = "reviewer"
    """Read and judge."""
    AUTHOR = "author"
    """Write environments, play, check and evaluate."""
    TRAINER = "trainer"
    """Add policies, train and export."""
    ADMIN = "admin"

    def includes(self, needed: "Role") -> bool:
        roles = list(Role)
        return roles.index(self) >= roles.index(needed)


class Split(StrEnum):
    TRAIN = "train"
    HELDOUT = "heldout"


class PolicyKind(StrEnum):
    LOCAL = "local"
    """A checkpoint that a worker loads."""
    OPENAI_API = "openai_api"
    """Any endpoint with the OpenAI chat completions API."""
    SCRIPTED = "scripted"
    HUMAN = "human"
    EXTERNAL = "external"
    """Played by another tool; its rollouts were imported."""


class RunKind(StrEnum):
    EVALUATION = "evaluation"
    TRAINING = "training"
    CHECK = "check"
    PLAY = "play"
    RESCORE = "rescore"
    """New rewards for the stored rollouts of a run, without sampling."""
    REPLAY = "replay"
    """The stored replies of a run, played on another version."""


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    """The circuit breaker or an alarm paused it; it can be resumed."""
    STOPPED = "stopped"
    """A person stopped it; it can be resumed."""
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self not in UNDER_WAY


UNDER_WAY = (RunStatus.QUEUED, RunStatus.RUNNING)
"""Statuses of unfinished runs, and of similar work."""


class JobStatus(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self not in UNFINISHED


UNFINISHED = (JobStatus.QUEUED, JobStatus.LEASED)
"""Statuses of unfinished jobs."""


class Phase(StrEnum):
    """Purpose of a rollout."""

    EVALUATION = "evaluation"
    CHECK = "check"
    PLAY = "play"
    WARM_UP = "warm_up"
    """A scripted policy's rollout, used as SFT data."""
    TRAIN = "train"
    HELDOUT = "heldout"
    """Held-out evaluation inside a training run."""
    CANARY = "canary"
    """An impossible task, mixed into training or an evaluation: a policy that passes it cheated. Quality figures do not
    count it."""


OF_STEPS = (Phase.TRAIN, Phase.CANARY)
"""Phases of a training run's steps."""
OF_EVALUATION = (Phase.EVALUATION, Phase.CANARY)
"""Phases of an evaluation."""


class RolloutStatus(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    """The infrastructure failed; the reward is null."""
    CANCELLED = "cancelled"
    PLAYING = "playing"
    """A person is playing it."""


class StopReason(StrEnum):
    DONE = "done"
    MAX_TURNS = "max_turns"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_FULL = "context_full"
    """The conversation filled the context of the model."""
    UNPARSABLE = "unparsable"
    EPISODE_TIMEOUT = "episode_timeout"
    ABANDONED = "abandoned"
    """A person left a hand-played episode."""


class ErrorKind(StrEnum):
    """The boundary at which a rollout failed."""

    POLICY = "policy"
    ENVIRONMENT = "environment"
    SANDBOX = "sandbox"
    JUDGE = "judge"
    LIMIT = "limit"


class CheckStatus(StrEnum):
    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    SKIPPED = "skipped"


class Verdict(StrEnum):
    HONEST = "honest"
    HACK = "hack"
    BROKEN_REWARD = "broken_reward"
    UNSURE = "unsure"


class Severity(StrEnum):
    NOTE = "note"
    WARNING = "warning"
    ALERT = "alert"


class GradeStatus(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    """The grader's model gave no usable reply; the grade is null."""


class ExportStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    REFUSED = "refused"
    """The passport failed: the reloaded export did not reproduce the checkpoint."""
    FAILED = "failed"


class ExportForm(StrEnum):
    """Contents of an export."""

    FULL = "full"
    """All weights of a fully trained policy."""
    ADAPTER = "adapter"
    """Only the LoRA weights, with the name of the base."""
    MERGED = "merged"
    """The adapter merged into the original base, in the base's precision."""
    MERGED_DEQUANTISED = "merged_dequantised"
    """The adapter merged into the dequantized 4-bit base that it was trained on."""
    GGUF = "gguf"
    """For llama.cpp."""


class AlarmAction(StrEnum):
    """A training run's automatic response to an alarm."""

    NOTE = "note"
    LOWER_RATE = "lower_rate"
    PAUSE = "pause"
    STOP = "stop"
    ROLL_BACK = "roll_back"


class AlarmAnswer(StrEnum):
    """A person's response to an alarm."""

    LOWER_RATE = "lower_rate"
    PAUSE = "pause"
    STOP = "stop"
    ROLL_BACK = "roll_back"
    SAVE_MEMORY = "save_memory"
    """Use more micro-batches or gradient checkpointing, and resume."""
    DISMISS = "dismiss"
    """A false alarm."""


class PreflightStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in {PreflightStatus.COMPLETED, PreflightStatus.FAILED}


class Queue(StrEnum):
    """One for each flavor of worker, because the pinned versions of their engines conflict."""

    CPU = "cpu"
    GPU = "gpu"
    """Local models: evaluation, training, export. On a laptop it runs on the CPU."""
    GPU_VLLM = "gpu-vllm"
    GPU_UNSLOTH = "gpu-unsloth"
