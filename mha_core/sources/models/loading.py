"""Loading trained models: from the two installed packages, a local folder, or the Hugging Face hub; once per process.

transformers builds the model, and nothing executes code that comes with the weights: pickled weights are read as
tensors alone. What would not fit in memory is refused by the size of its files, before anything is fetched.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mha_core.budget import limit_bytes, spell_bytes
from mha_core.errors import MhaError
from mha_core.sources.models.real_model import RealModel
from mha_core.sources.models.text import Reader, TextReader, reader_for
from mha_core.sources.models.vocabularies import vocabulary
from mha_core.sources.models.watching import INTERFACE, register
from mha_core.sources.models.weight_packages import PACKAGES, find_weights

MAX_MODELS = 3  # kept in memory
DEFAULT_MODEL_BYTES = 4 * 2**30
HUB_TIMEOUT_S = 5.0
REFUSED_S = 20.0  # what could not be had from the hub is not asked for again so soon: each part of a page would wait
MAX_REFUSED = 64
HEADS = {  # what the name of an architecture ends with -> the class that loads it
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
}
_lock, _loading = threading.Lock(), threading.Lock()
_loaded: OrderedDict[str, RealModel] = OrderedDict()
_refused: OrderedDict[str, tuple[float, MhaError]] = OrderedDict()  # when, and why


def is_loaded(name: str) -> bool:
    """Say whether a model is in memory."""
    return name in _loaded


def load(name: str) -> RealModel:
    """Give a model, loading it if it is not in memory.

    Args:
        name: "minilm", "smollm2", a local folder, or a name on the hub.

    Raises:
        MhaError: field "model"; not installed, not there, too large, or not a model that can be looked into.
    """
    model = _find(name)
    if model is not None:
        return model
    with _loading:  # one at a time; those that are loaded can be had meanwhile
        model = _find(name) or _load(name)
        with _lock:
            _loaded[name] = model
            while len(_loaded) > MAX_MODELS:
                _loaded.popitem(last=False)
    return model


def _find(name: str) -> RealModel | None:
    """Find a loaded model and mark it as just used."""
    with _lock:
        if name in _loaded:
            _loaded.move_to_end(name)
        return _loaded.get(name)


def _load(name: str) -> RealModel:
    if name in PACKAGES:
        weights = find_weights(name)
        named = {"gguf_file": weights.name} if weights.suffix == ".gguf" else {}
        return _build(name, str(weights.parent), named)
    if os.path.isdir(name):  # unlike Path.is_dir it bears names that no file can have
        _check_size(name, sum(file.stat().st_size for file in _weight_files(Path(name))))
        return _build(name, name, {})
    when, error = _refused.pop(name, (-REFUSED_S, None))
    if error is not None and time.monotonic() - when < REFUSED_S:
        _refused[name] = when, error
        raise error.with_traceback(None)
    try:
        return _from_hub(name)
    except MhaError as refusal:
        _refused[name] = time.monotonic(), refusal
        while len(_refused) > MAX_REFUSED:
            _refused.popitem(last=False)
        raise


def _from_hub(name: str) -> RealModel:
    size_bytes = _hub_bytes(name)
    if size_bytes is None:  # no hub in reach: what an earlier download left will do
        return _build(name, name, {"use_safetensors": True, "local_files_only": True})
    _check_size(name, size_bytes)
    return _build(name, name, {"use_safetensors": True})


def _weight_files(folder: Path) -> list[Path]:
    if not (folder / "config.json").is_file():
        problem = f"the folder {folder.name} has no config.json: it is not a model saved by transformers"
        raise MhaError("model", folder.name, "a folder with config.json and weights", problem=problem)
    return [file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin")]


def _check_size(name: str, size_bytes: int) -> None:
    limit = limit_bytes("MHA_LAB_MODEL_BUDGET", DEFAULT_MODEL_BYTES)
    if size_bytes > limit:
        problem = f"the weights of {name} are {spell_bytes(size_bytes)}, more than the {spell_bytes(limit)} allowed"
        raise MhaError("model", name, f"at most {limit} bytes", problem=problem)


def _hub_bytes(name: str) -> int | None:
    """Ask the hub how large a model's weights are, before anything is fetched; None where the hub cannot be reached."""
    from httpx2 import HTTPError
    from huggingface_hub import model_info
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        files = model_info(name, files_metadata=True, timeout=HUB_TIMEOUT_S).siblings or []
    except (HFValidationError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0][:160]
        problem = f"{Path(name).name[:80]} is no folder here and no model of the hub: {reason}"
        raise MhaError("model", name, "minilm, smollm2, a folder, or a name on the hub", problem=problem) from error
    except (HTTPError, OSError):
        return None
    return sum(file.size or 0 for file in files if file.rfilename.endswith(".safetensors"))


def _reader(name: str, place: str, module: nn.Module, options: Mapping[str, Any]) -> Reader:
    """Choose how a model reads; the tokens of a GGUF file come from our own quick reader, which gives the same."""
    if "gguf_file" not in options:
        return reader_for(place, module, options)
    tokens = vocabulary(name)
    longest = int(getattr(module.config, "max_position_embeddings", 8192))
    return TextReader(tokens.encode, tokens.shown.__getitem__, tokens.ids([tokens.pad])[0], longest)


def _build(name: str, place: str, named: Mapping[str, Any]) -> RealModel:
    """Build a model with the class its config names, and what turns text into its input."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options = dict(named) | {"trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(place, **options)
        wanted = (config.architectures or [""])[0]
        wanted = wanted or ("ForCausalLM" if "gguf_file" in named else "")  # such files name none, and hold decoders
        head = next((auto for suffix, auto in HEADS.items() if wanted.endswith(suffix)), "AutoModel")
        module, report = getattr(transformers, head).from_pretrained(
            place,
            config=config,
            attn_implementation=register(),
            dtype=torch.float32,
            output_loading_info=True,
            **options,
        )
        model = RealModel(name, module, _reader(name, place, module, options))
    except MhaError:
        raise
    except Exception as error:  # there is no end to what can be wrong with a config and weights of unknown origin
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        if INTERFACE in error.args or "eager_attention_forward" in reason:
            reason = "it does not ask transformers for its attention in the way we can look into"
        problem = f"the model {Path(name).name[:80]} cannot be loaded: {reason.rstrip('.')}"
        raise MhaError("model", name, "a model that transformers can load", problem=problem) from error
    absent = set(report["missing_keys"])
    for site in model.sites:
        if site.found is not None and absent & set(site.found.tensors.values()):
            problem = f"the weights of {Path(name).name[:80]} lack those of {site.label}, which would be random"
            raise MhaError("model", name, "a model with all its weights", problem=problem)
    return model
