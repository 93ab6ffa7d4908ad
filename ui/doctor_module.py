"""The check-up of a module on page Doctor: an example, or a person's code where the server allows it, or a report.

Code runs in a process of its own with limits; pasted code only where the server was started with MHA_LAB_ALLOW_CODE=1.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import streamlit as st

import mha_core.doctor.examples
from mha_core.doctor.process import sandbox
from mha_core.doctor.process.sandbox import Options
from mha_core.doctor.report import CHECK_IDS, Report, read_report
from mha_core.errors import MhaError
from ui import doctor_cards, jobs, panels

FOLDER = Path(mha_core.doctor.examples.__file__).parent
EXAMPLES = {
    "scrambled_heads": "Scrambled heads",
    "leak_in_one_mode": "A leak in one mode",
    "weak_mask": "A weak mask",
    "sound": "A sound layer",
}
OWN = "own"
WORDS: dict[str, bool | None] = {"read it from the module": None, "yes": True, "no": False}
STAGES = 3  # import, construct, examine
JOB = "checkup"
FILE_NAME = "module.py"
MAX_SOURCE = 200_000
MAX_REPORT_MB = 2
COMMAND = 'python -m mha_core doctor FILE.py:CLASS --kwargs \'{"embed_dim": 64, "num_heads": 8}\' --json'


@dataclass(frozen=True)
class Order:
    """What is to be checked up: a source, the class in it, its arguments, and what is declared about it."""

    source: str
    target: str | None = None
    kwargs: str = "{}"
    options: Options = field(default_factory=Options)


def code_allowed() -> bool:
    """Whether this server runs code that was pasted into a page."""
    return os.environ.get("MHA_LAB_ALLOW_CODE") == "1"


def section() -> None:
    """Draw the choice of a module, its check-up, and the reading of a report made elsewhere."""
    allowed = code_allowed()
    chosen = st.segmented_control(
        "Module",
        [*EXAMPLES, OWN],
        default=next(iter(EXAMPLES)),
        format_func=lambda name: EXAMPLES.get(name, "Mine"),
        key="doctor_source",
        required=True,
    )
    if chosen != OWN:
        _offer(_example(chosen))
    elif allowed:
        _offer(_own_code())
    else:
        _elsewhere()


def _example(name: str) -> Order:
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    with st.expander("Its code"):
        st.code(source, language="python", line_numbers=True)
    return Order(source)


def _own_code() -> Order:
    source = st.text_area(
        "Source of the module",
        height=280,
        max_chars=MAX_SOURCE,
        key="doctor_code",
        placeholder="import torch\nfrom torch import nn\n\nclass Attention(nn.Module):\n    ...",
    )
    left, middle, right = st.columns(3)
    target = left.text_input("Class", key="doctor_target", placeholder="the one attention class")
    kwargs = middle.text_input("Arguments, JSON", key="doctor_kwargs", placeholder='{"embed_dim": 64, "num_heads": 8}')
    call = right.text_input("Call", key="doctor_call", placeholder="module(x, mask=keep_keys)",
                            help="only where it cannot be found out; see the command's help for the names")  # fmt: skip
    causal = left.selectbox("Causal", list(WORDS), key="doctor_causal")
    batch_first = middle.selectbox("Batch first", list(WORDS), key="doctor_batch_first")
    options = Options(causal=WORDS[causal], batch_first=WORDS[batch_first], call=call or None)
    return Order(source, target or None, kwargs or "{}", options)


def _offer(order: Order) -> None:
    """Offer the check-up of a module, and show the one that was done of it."""
    about = repr(order)

    def begin() -> None:
        jobs.start(JOB, _work(order), STAGES + len(CHECK_IDS) + 1, about)

    st.button("Check it up", key="doctor_begin", type="primary", on_click=begin, disabled=not order.source.strip())
    job: jobs.Job[str | Report] | None = jobs.find(JOB)
    if job is not None and job.about == about:
        jobs.watch(JOB, _show)


def _work(order: Order) -> Iterator[str | Report]:
    """Give what begins, one step after the other, and the report at the end."""
    arguments = _arguments(order.kwargs)
    with tempfile.TemporaryDirectory(prefix="mha-doctor-") as folder:
        path = Path(folder) / FILE_NAME
        path.write_text(order.source, encoding="utf-8")
        work = sandbox.steps(path, order.target, arguments, order.options, path.parent)
        try:
            while True:
                stage = next(work)
                if stage is not None:
                    yield stage
        except StopIteration as end:
            yield end.value
        finally:
            work.close()


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        need = 'an object of JSON, as {"embed_dim": 64, "num_heads": 8}'
        raise MhaError("kwargs", text, need)
    return found


def _show(job: jobs.Job[str | Report]) -> None:
    results = list(job.results)
    if results and isinstance(results[-1], Report):
        doctor_cards.draw(results[-1], "checkup")
    elif results and job.is_running:
        st.caption(panels.plain(f"{results[-1]}".replace("_", " ")))


def _elsewhere() -> None:
    """Say how to check a module up where the page may not run it, and read the report of that."""
    st.markdown("This server does not run code from a page. Run the check-up beside your code:")
    st.code(COMMAND, language="bash")
    st.caption("Or start the dashboard on your own machine with MHA\\_LAB\\_ALLOW\\_CODE=1, and paste it here.")
    upload = st.file_uploader(
        "Show a report: what --json printed", type=["json"], key="doctor_report", max_upload_size=MAX_REPORT_MB
    )
    if upload is not None:
        try:
            doctor_cards.draw(read(upload.getvalue()), "report")
        except MhaError as error:
            st.error(panels.plain(f"{error}"))


def read(raw: bytes) -> Report:
    """Read a report from JSON.

    Raises:
        MhaError: field "report"; it is none.
    """
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        data = None
    return read_report(data)
