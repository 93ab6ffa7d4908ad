"""The doctor: check-ups of anybody's attention module, and the explainer of error texts.

`checkup` tests a module in this process, `explain` reads an error text. `calls` finds out how a module is called,
`traces` what it does, `causes` which mistake that is; `checks` are the questions, `probes` what they share; `process`
runs foreign files with limits.
"""

from mha_core.doctor.checkup import checkup
from mha_core.doctor.explain import Explanation, explain
from mha_core.doctor.report import Report

__all__ = ["Explanation", "Report", "checkup", "explain"]
