"""Build an object of a stranger's class: its own defaults, what was given, and guesses for what it needs besides.

Sizes are tried until the constructor accepts them. What was guessed is said in words, so that a person can correct it.
"""

from __future__ import annotations

import difflib
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from mha_core.doctor.calls.failure import one_line
from mha_core.doctor.process.guessed_config import GuessedConfig, build_config, config_class, has_defaults, takes_config
from mha_core.doctor.process.guesses import UNKNOWN, Sizes, Wishes, fitting, kind_of, kinds_of, of_annotation, value_of
from mha_core.doctor.process.own_lines import own_line
from mha_core.errors import MhaError, Suggestion

SIZE_KINDS = ("embed_dim", "num_heads", "num_kv_heads", "head_dim")
DECLARED_KINDS = ("embed_dim", "num_heads", "num_kv_heads", "causal", "batch_first")
SIZE_ERRORS = (ValueError, AssertionError, RuntimeError, ZeroDivisionError)
MAX_DEPTH = 2
SHOWN = 60


@dataclass
class _Plan:
    """How a class or function is called: its arguments, what was given, what is settled."""

    what: Callable[..., Any]
    wishes: Wishes
    given: Mapping[str, Any]
    depth: int = 0
    extra: list[str] = field(default_factory=list)  # names that **kwargs turned out to need
    parameters: dict[str, inspect.Parameter] = field(default_factory=dict)
    kinds: dict[str, str | None] = field(default_factory=dict)
    takes_any: bool = False


class _Learned(Exception):  # noqa: N818 (no error)
    """The constructor asked **kwargs for a name whose value can be guessed."""


def construct(what: Callable[..., Any], wishes: Wishes, given: Mapping[str, Any], depth: int = 0) -> tuple[Any, str]:
    """Call a class or factory. Returns what it made, and how it was called, in words.

    Args:
        wishes: what was declared about the module. given: arguments by name, as the person gave them.

    Raises:
        MhaError: it needs an argument that cannot be guessed, or refuses all; the sentence holds a line that would do.
    """
    plan = _Plan(what, wishes, given, depth)
    plan.parameters, plan.takes_any = _parameters(what)
    plain = {name: p for name, p in plan.parameters.items() if not takes_config(name, p.annotation)}
    plan.kinds = dict.fromkeys(plan.parameters, None) | kinds_of(plain)
    _refuse_unknown_names(plan)
    while True:
        try:
            return _first_that_fits(plan)
        except _Learned:  # one more name that **kwargs needs; each at most once
            continue


def _first_that_fits(plan: _Plan) -> tuple[Any, str]:
    first: tuple[Exception, Mapping[str, Any]] | None = None
    for sizes in fitting(_settled(plan), grouped=_is_grouped(plan)):
        values, guessed = _values(plan, sizes)
        try:
            return _call(plan, values), _in_words(plan, values, guessed)
        except _Learned:
            raise
        except SIZE_ERRORS as error:
            first = first or (error, values)
        except Exception as error:
            raise _refusal(plan, error, values) from error
        if not guessed:
            break
    assert first is not None  # there is always a size to try
    raise _refusal(plan, *first) from first[0]


def _parameters(what: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Give the arguments by name, through classes that pass **kwargs on; and whether any other name is taken too."""
    makers = [vars(c)["__init__"] for c in what.__mro__ if "__init__" in vars(c)] if inspect.isclass(what) else [what]
    found: dict[str, inspect.Parameter] = {}
    takes_any = False
    for maker in makers:
        if maker in (nn.Module.__init__, object.__init__):
            break
        try:
            listed = list(inspect.signature(maker).parameters.values())[inspect.isclass(what) :]
        except (TypeError, ValueError):
            break
        hints = _hints(maker)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in listed)
        for parameter in listed:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                hint = hints.get(parameter.name, parameter.annotation)
                found.setdefault(parameter.name, parameter.replace(annotation=hint))
        if not takes_any:
            break
    return found, takes_any


def _hints(maker: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(maker)
    except Exception:  # a name in an annotation that exists for type checkers only
        return {}


def _refuse_unknown_names(plan: _Plan) -> None:
    for name in plan.given:
        if name not in plan.parameters and not plan.takes_any:
            near = difflib.get_close_matches(name, plan.parameters, 1)
            known = ", ".join(plan.parameters) or "no argument at all"
            problem = f"{_name(plan.what)} has no argument {name!r}; it takes {known}"
            raise MhaError("kwargs", name, known, [Suggestion((), near[0])] if near else [], problem=problem)


def _settled(plan: _Plan) -> dict[str, int]:
    """Give the sizes that are not to be guessed: given, declared, or the class's own defaults."""
    fixed: dict[str, int] = {}
    for parameter in plan.parameters.values():
        kind = plan.kinds[parameter.name]
        value = plan.given.get(parameter.name, parameter.default)
        if takes_config(parameter.name, parameter.annotation):
            known = config_class(plan.what, parameter.annotation)
            fixed |= has_defaults(known) if known else {}
            for name, size in value.items() if isinstance(value, Mapping) else ():
                inner = kind_of(name)
                if inner in SIZE_KINDS and isinstance(size, int):
                    fixed[inner] = size
        elif kind in SIZE_KINDS and isinstance(value, int):
            fixed.setdefault(kind, value)
    declared = {kind: getattr(plan.wishes, kind, None) for kind in SIZE_KINDS[:3]}
    return fixed | {kind: value for kind, value in declared.items() if value is not None and value > 0}


def _is_grouped(plan: _Plan) -> bool:
    """Whether fewer key/value heads than heads can be asked for."""
    for p in plan.parameters.values():
        if plan.kinds[p.name] == "num_kv_heads" and (p.default is p.empty or isinstance(p.default, int)):
            return True
        if p.default is p.empty and p.name not in plan.given and takes_config(p.name, p.annotation):
            made = _config(plan, p, Sizes())
            return any(kind_of(name) == "num_kv_heads" for name in (made if isinstance(made, Mapping) else vars(made)))
    return False


def _values(plan: _Plan, sizes: Sizes) -> tuple[dict[str, Any], list[str]]:
    """Give the arguments by name, and the names of those that were guessed."""
    values, guessed = dict(plan.given), []
    for parameter in plan.parameters.values():
        kind = plan.kinds[parameter.name]
        is_config = takes_config(parameter.name, parameter.annotation)
        if parameter.name in plan.given and not (is_config and isinstance(plan.given[parameter.name], Mapping)):
            continue
        if is_config and (parameter.default is parameter.empty or parameter.name in plan.given):
            values[parameter.name] = _config(plan, parameter, sizes)
        elif parameter.default is parameter.empty:
            values[parameter.name] = _guess(plan, parameter, kind, sizes)
        elif kind in DECLARED_KINDS and _is_plain(parameter.default) and getattr(plan.wishes, kind) is not None:
            values[parameter.name] = getattr(plan.wishes, kind)
            continue
        else:
            continue
        guessed.append(parameter.name)
    for name in plan.extra:
        values[name] = value_of(kind_of(name), sizes, plan.wishes)
        guessed.append(name)
    return values, guessed


def _is_plain(default: object) -> bool:
    return isinstance(default, int)  # bool is one


def _config(plan: _Plan, parameter: inspect.Parameter, sizes: Sizes) -> Any:
    given = plan.given.get(parameter.name, {})
    wishes = replace(plan.wishes, given=given if isinstance(given, Mapping) else {})
    try:
        return build_config(plan.what, parameter.name, parameter.annotation, sizes, wishes)
    except Exception as error:
        raise _refusal(plan, error, {parameter.name: {}}) from error


def _guess(plan: _Plan, parameter: inspect.Parameter, kind: str | None, sizes: Sizes) -> Any:
    annotation = parameter.annotation
    is_part = inspect.isclass(annotation) and issubclass(annotation, nn.Module) and annotation is not nn.Module
    if is_part and plan.depth < MAX_DEPTH:
        return construct(annotation, _of_part(plan.wishes, sizes), {}, plan.depth + 1)[0]
    value = value_of(kind, sizes, plan.wishes)
    if value is UNKNOWN and annotation is not parameter.empty:
        value = of_annotation(annotation)
    if value is UNKNOWN:
        problem = f"{_name(plan.what)} needs {_needed(plan)}, and {parameter.name!r} cannot be guessed from its name"
        raise MhaError("kwargs", parameter.name, "a value", [_kwargs_line(plan, sizes)], problem=problem)
    return value


def _of_part(wishes: Wishes, sizes: Sizes) -> Wishes:
    return replace(wishes, embed_dim=sizes.embed_dim, num_heads=sizes.num_heads, given={})


def _call(plan: _Plan, values: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    ordered = [n for n, p in plan.parameters.items() if p.kind is p.POSITIONAL_ONLY and n in values]
    named = {name: value for name, value in values.items() if name not in ordered}
    try:
        return plan.what(*(values[name] for name in ordered), **named)
    except KeyError as error:
        name = str(error.args[0]) if error.args else ""
        if not plan.takes_any or name in values or value_of(kind_of(name), Sizes(), plan.wishes) is UNKNOWN:
            raise
        plan.extra.append(name)
        raise _Learned from error


def _needed(plan: _Plan) -> str:
    required = [p.name for p in plan.parameters.values() if p.default is p.empty]
    return ", ".join(required + plan.extra) or "no argument"


def _kwargs_line(plan: _Plan, sizes: Sizes) -> Suggestion:
    """Write a --kwargs that names every needed argument; null stands where a person has to choose."""
    values = dict(plan.given)
    for p in plan.parameters.values():
        if p.default is p.empty and p.name not in values:
            if takes_config(p.name, p.annotation):
                values[p.name] = {}
                continue
            value = value_of(plan.kinds[p.name], sizes, plan.wishes)
            values[p.name] = (1 if p.annotation is int else None) if value is UNKNOWN else value
    return Suggestion((), f"--kwargs '{json.dumps(values, default=str)}'")


def _refusal(plan: _Plan, error: Exception, values: Mapping[str, Any]) -> MhaError:
    if isinstance(error, MhaError):
        return error
    place = own_line(error)
    where = f" ({place})" if place else ""
    if isinstance(error, AttributeError) and isinstance(error.obj, GuessedConfig):
        name = next((n for n, value in values.items() if isinstance(value, GuessedConfig)), "config")
        line = Suggestion((), f"""--kwargs '{{"{name}": {{"{error.name}": 1}}}}' with its value""")
        problem = f"{_name(plan.what)} reads {error.name!r} from its {name}, which cannot be guessed{where}"
        return MhaError("kwargs", "", "a value", [line], problem=problem)
    shown = ", ".join(f"{name}={_brief(value)}" for name, value in values.items())
    problem = f"{_name(plan.what)}({shown}) raised {one_line(error)}{where}; it needs {_needed(plan)}"
    return MhaError(
        "kwargs", shown, "arguments that its constructor takes", [_kwargs_line(plan, Sizes())], problem=problem
    )


def _in_words(plan: _Plan, values: Mapping[str, Any], guessed: list[str]) -> str:
    called = f"{_name(plan.what)}({', '.join(f'{name}={_brief(value)}' for name, value in values.items())})"
    if guessed:
        return f"{called}; {', '.join(guessed)} guessed"
    return f"{called}, as given" if plan.given or values else f"{called}, with its own defaults"


def _brief(value: object) -> str:
    if hasattr(value, "to_diff_dict"):  # transformers' configs print everything
        sizes = {
            name: getattr(value, name, None) for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
        }
        return f"{type(value).__name__}({', '.join(f'{name}={size}' for name, size in sizes.items() if size)})"
    text = type(value).__name__ if isinstance(value, nn.Module) else " ".join(repr(value).split())
    return text if len(text) <= 4 * SHOWN else text[: 4 * SHOWN] + "..."


def _name(what: Callable[..., Any]) -> str:
    return getattr(what, "__name__", type(what).__name__)
