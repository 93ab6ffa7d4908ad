"""The check-up: every check on one module, in this process. Foreign files are run by `mha_core.doctor.process` instead.

A module that raises inside a check has answered it: the failure is the finding. Randomness, the gradient mode and the
number of threads are as before afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

import torch
from torch import nn

from mha_core.doctor.calls.knobs import one_thread
from mha_core.doctor.explain import explain
from mha_core.doctor.report import CHECK_IDS, CheckId, CheckResult, Report
from mha_core.doctor.subject import ModuleFailure, Subject, examine


def checkup(
    module: nn.Module,
    *,
    embed_dim: int | None = None,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    causal: bool | None = None,
    batch_first: bool | None = None,
    call: str | Callable[..., object] | None = None,
    only: Sequence[CheckId] | None = None,
    progress: Callable[[CheckId], None] | None = None,
) -> Report:
    """Test anybody's attention module for leaks, scrambled heads, wrong scales, dead gradients and more.

    The module is tested as a black box: values, not shapes. It is copied, so it stays as it is.

    Args:
        module: an attention layer, or a layer around one: it maps tokens (B, S, E) to tokens.
        embed_dim, num_heads, num_kv_heads: E, H and Hkv, where they cannot be read from the module.
        causal: whether token i must not see tokens after i; None reads it from the module's names.
        batch_first: whether the module wants (B, S, E) rather than (S, B, E); None reads it from the module.
        call: how it is called, as an expression or a function; `python -m mha_core doctor --help` lists the names.
        only: ids of the checks to do; all where None. The report holds these alone.
        progress: called with the id of each check before it is done.

    Raises:
        MhaError: the module cannot be called; the sentence says what to pass as `call`.
    """
    subject = examine(
        module,
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        causal=causal,
        batch_first=batch_first,
        call=call,
    )
    results = []
    for check_id in CHECK_IDS:
        if only is None or check_id in only:
            if progress is not None:
                progress(check_id)
            results.append(perform(check_id, subject))
    return Report(subject.name, subject.assumed, tuple(results))


def perform(check_id: CheckId, subject: Subject) -> CheckResult:
    """Do one check; what the module raises is the finding, and what the check itself does not manage is said."""
    check: Callable[[Subject], CheckResult] = import_module(f"mha_core.doctor.checks.{check_id}").check
    grad_enabled = torch.is_grad_enabled()
    with one_thread(), torch.random.fork_rng(devices=[]), torch.set_grad_enabled(True):
        try:
            return check(subject)
        except ModuleFailure as failure:
            return failed(check_id, failure)
        except Exception as error:  # ours: the other checks go on, and nobody takes this one for a pass
            problem = f"the doctor could not do this check: {type(error).__name__}: {error}"
            return CheckResult(check_id, "not_applicable", problem)
        finally:
            torch.set_grad_enabled(grad_enabled)


def failed(check_id: CheckId, failure: ModuleFailure) -> CheckResult:
    """Make a finding of what the module raised, with the explanation of its text where there is one."""
    explanation = explain(failure.text)
    return CheckResult(
        check_id,
        "fail",
        f"the module raised {failure.text}",
        {"error": failure.text},
        explanation.explanation if explanation.known else "",
        failure.place,
    )
