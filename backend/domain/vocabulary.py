"""The words that are stored: roles, kinds, statuses and reasons. One spelling in SQL, Python, JSON and HTML."""

from enum import StrEnum


class Role(StrEnum):
    """What a member may do. Each role may do all that the roles before it may."""

    VIEWER = "viewer"
    REVIEWER = "reviewer"
    """Read and judge."""
    AUTHOR = "author"
    """Write environments, play, check and evaluate."""
    TRAINER = "trainer"
    """Add policies, train and export."""
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    def includes(self, needed: "Role") -> bool:
        return self.rank >= needed.rank


class Split(StrEnum):
    TRAIN = "train"
    HELDOUT = "heldout"


class PolicyKind(StrEnum):
    LOCAL = "local"
    """A checkpoint that a worker of this installation loads."""
    OPENAI_API = "openai_api"
    """Any endpoint that speaks the OpenAI chat completions API."""
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
    """Other rewards over the stored rollouts of a run, without sampling."""
    REPLAY = "replay"
    """The stored actions of a run on another version."""


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
"""Statuses of runs, and of what is carried out as runs are, that are not over."""


class JobStatus(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"


class Phase(StrEnum):
    """Why a rollout was played."""

    EVALUATION = "evaluation"
    CHECK = "check"
    PLAY = "play"
    WARM_UP = "warm_up"
    """Scripted play that became SFT data."""
    TRAIN = "train"
    HELDOUT = "heldout"
    """Held-out evaluation inside a training run."""
    CANARY = "canary"
    """A task that cannot be solved, mixed into training or an evaluation: who passes it cheated. No figure of quality
    counts it."""


OF_STEPS = (Phase.TRAIN, Phase.CANARY)
"""What the steps of a training run play."""
OF_EVALUATION = (Phase.EVALUATION, Phase.CANARY)
"""What an evaluation plays."""


class RolloutStatus(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    """The infrastructure failed; the reward is null."""
    CANCELLED = "cancelled"
    PLAYING = "playing"
    """A person is at it."""


class StopReason(StrEnum):
    DONE = "done"
    MAX_TURNS = "max_turns"
    TOKEN_LIMIT = "token_limit"
    UNPARSABLE = "unparsable"
    EPISODE_TIMEOUT = "episode_timeout"
    ABANDONED = "abandoned"
    """A person left a hand-played episode."""


class ErrorKind(StrEnum):
    """At which boundary a failed rollout broke."""

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
    """What is handed out of a checkpoint."""

    FULL = "full"
    """All weights, of a policy that was trained whole."""
    ADAPTER = "adapter"
    """The LoRA weights alone; the base is named."""
    MERGED = "merged"
    """The adapter added to the original base, in the base's own precision."""
    MERGED_DEQUANTISED = "merged_dequantised"
    """The adapter added to the 4-bit base that was trained on, dequantised."""
    GGUF = "gguf"
    """For llama.cpp."""


class AlarmAction(StrEnum):
    """What a training run does about an alarm by itself."""

    NOTE = "note"
    LOWER_RATE = "lower_rate"
    PAUSE = "pause"
    STOP = "stop"
    ROLL_BACK = "roll_back"


class AlarmAnswer(StrEnum):
    """What a person does about an alarm."""

    LOWER_RATE = "lower_rate"
    PAUSE = "pause"
    STOP = "stop"
    ROLL_BACK = "roll_back"
    SAVE_MEMORY = "save_memory"
    """Compute a step in more parts, or activations twice, and resume."""
    DISMISS = "dismiss"
    """It is none."""


class PreflightStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in {PreflightStatus.COMPLETED, PreflightStatus.FAILED}


class Queue(StrEnum):
    """One for each flavour of worker: their engines' pins conflict."""

    CPU = "cpu"
    GPU = "gpu"
    """Local models: evaluation, training, export. On a laptop the CPU serves it."""
    GPU_VLLM = "gpu-vllm"
    GPU_UNSLOTH = "gpu-unsloth"
