"""The view: what is looked at, beside the experiment. One registry for the link, the widgets and the parts to redraw.

Each entry is a field, as those of the experiment, and the parts of its page that show it.
"""

from __future__ import annotations

from mha_core.clinic import MISTAKES, SYMPTOMS
from mha_core.clinic.exercise import CANDIDATES
from mha_core.config import MAX_EMBED_DIM
from mha_core.fields import Field
from mha_core.lenses import training_model
from mha_core.lenses.depth import ARRANGEMENTS
from mha_core.lenses.grad_losses import LOSSES
from mha_core.lenses.steps import STEP_NAMES
from mha_core.lenses.training_model import DEFAULT_RACERS, RACERS, RaceSetting
from mha_core.lenses.training_tasks import TASKS

MAX_TOKENS_CHOSEN = 65_536
MAX_CONTEXT = 2**24
MEASURE = ("measure",)
LENGTHS = tuple(str(2**power) for power in range(4, 13))  # 16 to 4096
BENCH_DTYPES = ("float32", "bfloat16", "autocast", "float16", "float64")
USUAL_ARRANGEMENTS = (
    "plain",
    "residual",
    "residual + pre-norm",
    "residual + pre-norm + out/√(2L)",
    "residual + post-norm",
)
MAPS = ("maps", "large_map", "closer_look")
CLINIC = ("clinic",)
RACE = RaceSetting()
REAL_SORTS = ("layer", "induction", "previous", "first", "diagonal", "maximum", "relative_entropy")
COST = ("cost_headline", "cost_bars", "cost_table", "cost_truth", "cost_growth", "cost_groups")


def _choice(name: str, help_: str, choices: tuple[str, ...]) -> Field:
    return Field(name, "view", "choice", choices[0], help_, choices)


def _flags(name: str, help_: str, choices: tuple[str, ...], default: tuple[str, ...]) -> Field:
    return Field(name, "view", "flags", default, help_, choices)


def _count(name: str, help_: str, maximum: int, default: int = 0, minimum: int = 0) -> Field:
    return Field(name, "view", "int", default, help_, minimum=minimum, maximum=maximum)


_VIEW: tuple[tuple[Field, tuple[str, ...]], ...] = (
    # Attention
    (_choice("stage", "which tensor the maps show", ("weights", "scores", "masked")), MAPS),
    (_choice("colour", "how values become colours", ("fixed", "head", "log")), MAPS),
    (_choice("pooling", "what a cell of a pooled map keeps", ("max", "mean")), MAPS),
    (_count("head", "chosen head", 1023), MAPS),
    (_count("sequence", "sequence of the batch", 511), (*MAPS, "values", "lab", "all_heads", "effects", *CLINIC)),
    (
        _choice("panel", "what is shown below", ("none", "bars", "lines", "statistics", "similarity")),
        ("closer_look",),
    ),
    (Field("queries", "view", "ints", (), "chosen query tokens", minimum=0, maximum=MAX_TOKENS_CHOSEN), MAPS),
    (_choice("combine", "how several query tokens are joined", ("mean", "sum")), MAPS),
    (_choice("line_heads", "whose lines are drawn", ("chosen", "all")), MAPS),
    # Gradients
    (
        _choice(
            "lab", "what of the laboratory is shown", ("one_pass", "schemes", "matrices", "depth", "race", "own_model")
        ),
        ("lab",),
    ),
    (_choice("grad_loss", "what the backward pass starts from", tuple(LOSSES)), ("lab",)),
    (_count("depth_layers", "number of stacked layers", 64, 16, 1), ("lab",)),
    (
        _choice(
            "depth_quantity", "what is drawn over the layers", ("input_gradient", "weight_gradient", "activation_rms")
        ),
        ("lab",),
    ),
    (
        Field(
            "depth_arrangements", "view", "flags", USUAL_ARRANGEMENTS, "residual, norm, scaling", tuple(ARRANGEMENTS)
        ),
        ("lab",),
    ),
    (_choice("phase_axis", "what the gain is drawn against", ("depth", "width")), ("lab",)),
    (_choice("phase_arrangement", "residual, norm and scaling of the stack", tuple(ARRANGEMENTS)), ("lab",)),
    (_choice("race_task", "what the tiny model is to learn", tuple(TASKS)), ("lab",)),
    (_flags("race_schemes", "how attention starts", tuple(RACERS), DEFAULT_RACERS), ("lab",)),
    (_count("race_steps", "steps of Adam", training_model.MAX_STEPS, RACE.steps, 1), ("lab",)),
    (_count("race_batch", "sequences of one step", training_model.MAX_BATCH, RACE.batch, 1), ("lab",)),
    (_count("race_length", "tokens of a question", training_model.MAX_LENGTH, RACE.length, 4), ("lab",)),
    (_count("race_vocab", "different tokens", 26, RACE.vocab, 3), ("lab",)),
    (_count("race_width", "E of the tiny model", training_model.MAX_WIDTH, RACE.embed_dim, 2), ("lab",)),
    (_count("race_heads", "H of the tiny model", training_model.MAX_RACE_HEADS, RACE.num_heads, 1), ("lab",)),
    (_count("race_layers", "attention layers", training_model.MAX_LAYERS, RACE.layers, 1), ("lab",)),
    (
        Field("race_rate", "view", "float", RACE.learning_rate, "learning rate of Adam", minimum=1e-6, maximum=10.0),
        ("lab",),
    ),
    (Field("race_norm", "view", "bool", False, "layer norm before attention and read-out"), ("lab",)),
    (_choice("race_matrix", "whose gradient norm is drawn", ("all", "q", "k", "v", "out")), ("lab",)),
    (_count("race_step", "step whose maps are shown", training_model.MAX_STEPS, training_model.MAX_STEPS), ("lab",)),
    # Shapes
    (Field("step", "view", "choice", "weights", "step whose values are shown", STEP_NAMES), ("steps", "values")),
    (_count("index_b", "sequence whose element is followed", 511), ("index_map",)),
    (_count("index_s", "token whose element is followed", MAX_TOKENS_CHOSEN, 3), ("index_map",)),
    (_count("index_e", "channel whose element is followed", MAX_EMBED_DIM, 200), ("index_map",)),
    # Cost
    (
        _choice(
            "cost_unit", "1 multiply-add is 2 FLOP or 1 MAC; elementwise work has no multiply-add", ("flop", "mac")
        ),
        COST,
    ),
    (_choice("cost_pass", "forward alone, or with backward", ("forward", "both")), COST[:3]),
    (_choice("cost_pairs", "all pairs, as a dense kernel, or those the mask allows", ("dense", "needed")), COST[:3]),
    (
        Field("cost_input_gradient", "view", "bool", True, "backward also reaches the layer's input"),
        COST[:4],
    ),
    (
        _count("cost_context", "tokens whose keys and values are cached", MAX_CONTEXT, 4096, 1),
        ("cost_headline", "cost_groups", "cost_memory"),
    ),
    # Engines
    (_flags("bench_lengths", "lengths to measure, tokens", LENGTHS, ("64", "512")), MEASURE),
    (_flags("bench_passes", "with or without the gradients", ("forward", "forward+backward"), ("forward",)), MEASURE),
    (_flags("bench_dtypes", "number formats", BENCH_DTYPES, BENCH_DTYPES[:3]), ("agreement", *MEASURE)),
    (_count("bench_seconds", "time for each length and pass, shared by all variants; seconds", 60, 5, 1), MEASURE),
    (_choice("bench_shown", "number format in the plots", BENCH_DTYPES), MEASURE),
    # Real models
    (_choice("real_view", "what of real models is shown", ("heads", "effects", "checkpoint")), ()),
    (_choice("real_sort", "which number of a head decides", tuple(REAL_SORTS)), ("all_heads",)),
    (_count("real_least", "heads with a smaller number are left out; percent", 100), ("all_heads",)),
    (_choice("real_maps", "which maps are shown", ("difference", "after", "before")), ("effects",)),
    (_count("seen_layer", "attention layer of the checkpoint, in the order of the file", 4095), ("checkpoint",)),
    (_count("seen_heads", "number of heads to read it with; 0: as it follows from the file", 1024), ("checkpoint",)),
    (
        _choice("seen_measure", "what is shown of every head", ("norm", "std", "largest", "rank", "kurtosis")),
        ("checkpoint",),
    ),
    # Clinic
    (_choice("clinic_view", "a chosen mistake, or one to be found", ("look", "exercise")), CLINIC),
    (_choice("clinic_symptom", "what a person would come with", ("all", *SYMPTOMS)), CLINIC),
    (_choice("clinic_mistake", "mistake that is shown", tuple(MISTAKES)), CLINIC),
    (_count("clinic_seed", "which exercise", 1_000_000), CLINIC),
    (_count("clinic_guess", "chosen answer of the exercise, 1 to 5; 0: none yet", CANDIDATES), CLINIC),
    (
        _choice("clinic_probe", "what is changed to see what moves", ("none", "token", "sequence", "padding", "again")),
        CLINIC,
    ),
    # Doctor
    (_choice("doctor_view", "what the doctor is asked about", ("error", "module")), ("doctor",)),
)
VIEW_FIELDS: dict[str, Field] = {field.name: field for field, _ in _VIEW}
PARTS_OF_VIEW: dict[str, tuple[str, ...]] = {field.name: parts for field, parts in _VIEW}
