"""Real models: small random ones of every family, saved to a folder, loaded, and compared with transformers itself.

`tests.core.small_models` builds them; the reference is a second copy with transformers' own attention. Bars of the
product: 1e-5 for weights, 1e-4 for outputs, on a batch of lines of different lengths.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from mha_core import AttentionConfig, Experiment, MaskSpec, MhaError
from mha_core.experiment import run
from mha_core.lenses.real_heads import recompute
from mha_core.sources.models.loading import load
from mha_core.sources.models.real_model import RealModel
from mha_core.sources.models.watching import SiteCall
from mha_core.sources.trained import PretrainedSource
from tests.core.small_models import LLAMA, MAKERS, TEXT, eager, own_maps, save

LENGTHS = [7, 5, 1]
PATHS = {
    "bert": "encoder.layer.{}.attention.self", "roberta": "encoder.layer.{}.attention.self",
    "distilbert": "transformer.layer.{}.attention", "gpt2": "transformer.h.{}.attn", "opt":
    "model.decoder.layers.{}.self_attn", "gpt_neox": "gpt_neox.layers.{}.attention",
}  # fmt: skip
# E, H, Hkv, D, bias, whether it turns q and k
SHAPES = {
    "bert": (15, 3, 3, 5, True, False), "roberta": (15, 3, 3, 5, True, False), "distilbert": (15, 3, 3, 5, True, False),
    "gpt2": (21, 3, 3, 7, True, False), "llama": (42, 6, 2, 10, False, True), "qwen2": (60, 6, 2, 10, True, True),
    "llama_linear": (42, 6, 2, 10, False, True), "llama_llama3": (42, 6, 2, 10, False, True),
    "llama_yarn": (42, 6, 2, 10, False, True), "mistral": (42, 6, 2, 10, False, True),
    "opt": (33, 3, 3, 11, True, False), "gpt_neox": (36, 3, 3, 12, True, True), "vit": (15, 3, 3, 5, True, False),
    "t5": (21, 3, 3, 5, False, False),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every family once: half of them with a tokenizer beside the weights."""
    root = tmp_path_factory.mktemp("models")
    return {
        family: save(maker, root / family, with_tokenizer=number % 2 == 0, seed=number)
        for number, (family, maker) in enumerate(MAKERS.items())
    }


def calls_of(model: RealModel, text: str = TEXT) -> list[SiteCall]:
    calls: list[SiteCall] = []
    model.run(model.reader.read(text, None), calls.append)
    return calls


@pytest.mark.parametrize("family", MAKERS)
def test_every_layer_is_watched_and_recomputed(family: str, folders: dict[str, Path]) -> None:
    model = load(str(folders[family]))
    calls = calls_of(model)
    reference = own_maps(eager(folders[family], model.module), model.reader.read(TEXT, None))
    assert [site.path for site in model.sites] == [call.path for call in calls]
    assert len(reference) == len(calls) == (6 if family == "t5" else 2)
    for site, call, maps in zip(model.sites, calls, reference, strict=True):
        assert maps.max() > 2 / maps.shape[-1] or maps.shape[-1] == 1, "far from uniform"
        torch.testing.assert_close(call.weights, maps, rtol=0, atol=1e-6)
        difference = recompute(model, site, call)
        assert difference.problem == ""
        assert difference.weights <= 1e-5
        assert difference.output <= 1e-4
        assert call.output.std() > 0.1


@pytest.mark.parametrize("family", MAKERS)
def test_layers_are_listed_in_the_order_of_a_pass(family: str, folders: dict[str, Path]) -> None:
    model = load(str(folders[family]))
    assert [site.index for site in model.sites] == list(range(len(model.sites)))
    width, heads, kv_heads, head_dim, bias, turns = SHAPES[family]
    for site in model.sites:
        config = site.config
        assert (config.embed_dim, config.num_heads, config.kv_heads, config.head_dim) == (
            width, heads, kv_heads, head_dim,
        )  # fmt: skip
        assert (config.bias, config.rope_theta is not None, site.problem) == (bias, turns, "")
    if family == "t5":
        described = [(site.label, site.stack, site.kind) for site in model.sites]
        assert described == [
            ("encoder 0", "encoder", "self"), ("encoder 1", "encoder", "self"), ("decoder 0", "decoder", "self"),
            ("decoder 0 cross", "decoder", "cross"), ("decoder 1", "decoder", "self"),
            ("decoder 1 cross", "decoder", "cross"),
        ]  # fmt: skip
        assert model.sites[0].config.softmax_scale == 1.0, "T5 does not scale"
    else:
        assert [(s.label, s.stack, s.kind) for s in model.sites] == [("layer 0", "", "self"), ("layer 1", "", "self")]
        path = PATHS.get(family, "layers.{}.attention" if family == "vit" else "model.layers.{}.self_attn")
        assert [site.path.endswith(path.format(n)) for n, site in enumerate(model.sites)] == [True, True]
        assert model.sites[0].config.softmax_scale == pytest.approx(head_dim**-0.5)
    can_predict = family not in ("bert", "roberta", "distilbert", "vit")
    assert model.can_predict == can_predict


@pytest.mark.parametrize("family", MAKERS)
def test_a_layer_is_an_experiment_with_the_models_own_maps(family: str, folders: dict[str, Path]) -> None:
    model = load(str(folders[family]))
    given = model.reader.read(TEXT, None)
    reference = own_maps(eager(folders[family], model.module), given)
    for layer, maps in enumerate(reference):
        source = PretrainedSource(str(folders[family]), layer, TEXT)
        answer = run(Experiment(source=source, mask=MaskSpec(fill="min")))
        torch.testing.assert_close(answer.weights, maps, rtol=0, atol=1e-5)
        assert (answer.sizes.batch, answer.sizes.q_len, answer.sizes.k_len) == (
            maps.shape[0], maps.shape[2], maps.shape[3],
        )  # fmt: skip
        if family != "vit":
            assert [len(line.split()) for line in TEXT.splitlines()] == LENGTHS == list(answer.sizes.k_tokens.lengths)
            assert not answer.allowed[1, :, :, 5:].any()
            assert (answer.weights[1, :, :5, 5:] == 0).all()


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gpt_neox", "t5"])
def test_every_engine_gives_the_models_output(family: str, folders: dict[str, Path]) -> None:
    model = load(str(folders[family]))
    outputs = [call.output for call in calls_of(model)]
    for layer in (1, 3) if family == "t5" else (1,):
        source = PretrainedSource(str(folders[family]), layer, TEXT)
        engines = [
            {"projection": projection, "qkv_layout": layout, "kernel": kernel, "head_split": split}
            for projection, layout in (("separate", "stacked"), ("fused", "stacked"), ("fused", "interleaved"))
            for kernel in ("explicit", "chunked", "sdpa")
            for split in ("view", "einops")
        ]
        for engine in engines:
            answer = run(Experiment(source=source, attention=AttentionConfig(**engine)))
            torch.testing.assert_close(answer.output, outputs[layer], rtol=0, atol=1e-4, msg=str(engine))


def test_sizes_of_another_layer_in_the_choices_do_not_matter(folders: dict[str, Path]) -> None:
    source = PretrainedSource(str(folders["llama"]), 1, TEXT)
    chosen = AttentionConfig(50, 5, num_kv_heads=1, bias=True, dropout=0.0, scale=None, rope_theta=3.0)
    experiment = Experiment(source=source, attention=chosen, positions="sinusoidal")
    assert experiment == Experiment(source=source)
    config = experiment.attention
    assert (config.embed_dim, config.num_heads, config.kv_heads, config.head_dim) == (42, 6, 2, 10)


def test_the_decoder_of_a_pair_reads_its_own_text(folders: dict[str, Path]) -> None:
    model = load(str(folders["t5"]))
    given = model.reader.read("the cat sat on the mat", "three birds\n")
    assert (given.tokens.lengths, given.second.lengths) == ((6,), (2,))
    assert given.arguments["decoder_input_ids"][0, 0] == 0, "it starts with the start token and is one token behind"
    reference = own_maps(eager(folders["t5"], model.module), given)
    for layer, shape in ((0, (6, 6)), (2, (2, 2)), (3, (2, 6))):
        source = PretrainedSource(str(folders["t5"]), layer, "the cat sat on the mat", "three birds")
        answer = run(Experiment(source=source))
        assert answer.weights.shape[2:] == shape
        torch.testing.assert_close(answer.weights, reference[layer], rtol=0, atol=1e-5)
    with pytest.raises(MhaError, match="text has 3 lines, but the decoder's text has 2") as caught:
        model.reader.read(TEXT, "a\nb")
    assert caught.value.field == "memory_text"
    one_for_all = model.reader.read(TEXT, "three birds")
    assert one_for_all.second.batch == 3


def test_a_window_and_scaled_angles_are_really_there(folders: dict[str, Path]) -> None:
    """Else the comparisons above would compare what all LLaMA-like models share."""
    mistral = calls_of(load(str(folders["mistral"])))[0]
    assert mistral.mask[0, 0, 6].tolist() == [False] * 4 + [True] * 3
    turns = {name: calls_of(load(str(folders[name])))[0].rotary for name in ("llama", "llama_linear", "llama_yarn")}
    assert turns["llama"][0].shape[-2:] == (7, 5)
    fourth = torch.tensor([[p / 4 * 1234.0 ** (-d / 5) for d in range(5)] for p in range(7)])
    torch.testing.assert_close(turns["llama_linear"][0].flatten(0, -3)[0], fourth.cos())
    assert turns["llama_yarn"][0].max() > 1.1, "YaRN makes the tables longer as well"
    partial = calls_of(load(str(folders["gpt_neox"])))[0].rotary
    assert partial[0].shape[-1] == 3, "half of 12 channels, in pairs"


def test_readers_use_the_tokenizer_beside_the_weights(folders: dict[str, Path]) -> None:
    with_one, without = load(str(folders["bert"])).reader, load(str(folders["roberta"])).reader
    given = with_one.read("the cat\nxyzzy", None)
    assert given.tokens.sequences == (("the", "cat"), ("[UNK]",))
    assert given.arguments["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert with_one.note == ""
    given = without.read("the cat the\nbird", None)
    ids = given.arguments["input_ids"][0].tolist()
    assert given.tokens.sequences == (("the", "cat", "the"), ("bird",))
    assert ids[0] == ids[2] != ids[1]
    assert "without a tokenizer" in without.note


@pytest.mark.parametrize("family", [family for family in MAKERS if family != "vit"])
def test_without_a_tokenizer_words_are_numbered(family: str, tmp_path: Path) -> None:
    """transformers invents an empty tokenizer for most families, which would make every word the same."""
    reader = load(str(save(MAKERS[family], tmp_path / "bare"))).reader
    assert "without a tokenizer" in reader.note
    given = reader.read("the cat sat on the mat", None)
    assert given.tokens.sequences == (("the", "cat", "sat", "on", "the", "mat"),)
    assert len(set(given.arguments["input_ids"][0].tolist())) >= 4


def test_a_vision_model_reads_text_as_a_picture(folders: dict[str, Path]) -> None:
    model = load(str(folders["vit"]))
    given = model.reader.read("a long line of words\n\nb", None)
    pictures = given.arguments["pixel_values"]
    assert pictures.shape == (2, 3, 28, 28)
    assert pictures.min() < -0.4 < 0.9 < pictures.max() == 1, "dark on white"
    assert not torch.equal(pictures[0], pictures[1])
    assert given.tokens.sequences[0][:3] == ("[CLS]", "0,0", "0,1")
    assert len(given.tokens.sequences[0]) == 17
    with pytest.raises(MhaError, match="no line to draw"):
        model.reader.read(" \n", None)


# --- models that cannot be looked into, or only looked at -----------------------------------------------------------


WIDER = LLAMA | {"hidden_size": 60}
FOREIGN = {
    "normalises q and k": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA)),
    "softens its scores": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**LLAMA, attn_logit_softcapping=2.0)
    ),
    "turns neighbours": lambda: transformers.CohereForCausalLM(transformers.CohereConfig(**WIDER)),
    "turns neighbours in part": lambda: transformers.GPTJForCausalLM(
        transformers.GPTJConfig(vocab_size=61, n_embd=48, n_head=3, n_layer=2, rotary_dim=4, bos_token_id=1,
                                eos_token_id=2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FOREIGN)
def test_layers_that_do_what_ours_does_not_are_shown_but_not_recomputed(what: str, tmp_path: Path) -> None:
    folder = str(save(FOREIGN[what], tmp_path / "foreign"))
    model = load(folder)
    calls = calls_of(model)
    reference = own_maps(eager(folder, model.module), model.reader.read(TEXT, None))
    for site, call, maps in zip(model.sites, calls, reference, strict=True):
        torch.testing.assert_close(call.weights, maps, rtol=0, atol=1e-6)
        assert recompute(model, site, call).weights is None
        told = "normalises q and k" if what.startswith("norm") else "it computes something that our layer does not"
        assert told in recompute(model, site, call).problem
    with pytest.raises(MhaError, match=f"layer 1: .*{told}") as caught:
        Experiment(source=PretrainedSource(folder, 1))
    assert caught.value.field == "layer"


# --- texts, layers and heads that do not exist ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "positions"), [("bert", 40), ("roberta", 29), ("gpt2", 37), ("opt", 41), ("llama", 64)]
)
def test_a_text_as_long_as_the_positions_is_read_and_a_longer_one_refused(
    family: str, positions: int, folders: dict[str, Path]
) -> None:
    model = load(str(folders[family]))
    longest = "\n".join(["cat " * positions, "cat"])
    assert model.run(model.reader.read(longest, None))[0].shape[0] == 2
    with pytest.raises(MhaError, match=f"positions for {positions}") as caught:
        model.reader.read(longest + "\n" + "cat " * (positions + 1), None)
    assert caught.value.field == "text"
    ((field, shorter),) = caught.value.try_[0].changes
    assert field == "text"
    model.reader.read(str(shorter), None)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_text_without_tokens(text: str, folders: dict[str, Path]) -> None:
    with pytest.raises(MhaError) as caught:
        run(Experiment(source=PretrainedSource(str(folders["gpt2"]), 0, text)))
    assert caught.value.field == "text"


def test_a_layer_that_is_not_there(folders: dict[str, Path]) -> None:
    with pytest.raises(MhaError, match="from 0 to 1") as caught:
        Experiment(source=PretrainedSource(str(folders["gpt2"]), 2))
    assert caught.value.field == "layer"
    assert caught.value.try_[0].changes == (("layer", 1),)


@pytest.mark.parametrize("muted", [("0.3",), ("1.99",), ("2.0",), ("0.0", "4000.1")])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_muted_head_that_is_not_there(muted: tuple[str, ...], layer: int, folders: dict[str, Path]) -> None:
    experiment = Experiment(source=PretrainedSource(str(folders["gpt2"]), layer, TEXT, muted=muted))
    with pytest.raises(MhaError) as caught:
        run(experiment)
    assert caught.value.field == "muted"


@pytest.mark.parametrize("muted", [("a",), ("1",), ("1.",), ("-1.0",), ("1.2.3",), ("1.0" * 9,)], ids=str)
def test_words_that_are_no_heads(muted: tuple[str, ...]) -> None:
    with pytest.raises(MhaError) as caught:
        PretrainedSource(muted=muted)
    assert caught.value.field == "muted"


def test_heads_are_put_in_order() -> None:
    assert PretrainedSource(muted=("10.1", "2.11", "2.3", " 2.3")).muted == ("2.3", "2.11", "10.1")
