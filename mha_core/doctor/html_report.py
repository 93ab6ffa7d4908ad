"""A check-up as one page that stands alone: no script, no network, light or dark as the reader's system is.

Every text in it may come from foreign code, so every one is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from mha_core.doctor.report import CheckResult, Report
from mha_core.doctor.report_groups import TITLES, VERDICTS, WORDS, groups, spell

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1d2530; --quiet: #566270;
  --line: #d9dee5; --code: #eef1f5; --fail: #b3261e; --warn: #8a5300; --by_design: #0b5fa5; --pass: #1a6b3c;
  --not_applicable: #5f6b78; }
@media (prefers-color-scheme: dark) { :root { --ground: #10151c; --card: #19202a; --ink: #e3e8ee; --quiet: #a3afbc;
  --line: #2f3a47; --code: #10151c; --fail: #ff8a80; --warn: #ffc46b; --by_design: #7cc0ff; --pass: #7ddb9f;
  --not_applicable: #a3afbc; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; color: var(--quiet); }
h3 { font-size: 1rem; margin: 0; display: inline; font-family: ui-monospace, monospace; }
p { margin: .4rem 0; }
.summary { color: var(--quiet); }
.card { background: var(--card); border: 1px solid var(--line); border-left: 5px solid var(--tone);
  border-radius: 6px; padding: .7rem 1rem; margin: .6rem 0; }
.mark { color: var(--tone); font-weight: 600; margin-left: .6rem; }
.fail { --tone: var(--fail); } .warn { --tone: var(--warn); } .by_design { --tone: var(--by_design); }
.pass { --tone: var(--pass); } .not_applicable { --tone: var(--not_applicable); }
pre, code { font-family: ui-monospace, monospace; font-size: .875rem; }
pre { background: var(--code); border-radius: 4px; padding: .5rem .7rem; margin: .5rem 0; white-space: pre-wrap; }
details { margin: .4rem 0 0; } summary { cursor: pointer; color: var(--quiet); }
table { border-collapse: collapse; width: 100%; margin: .4rem 0; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; }
tr + tr > * { border-top: 1px solid var(--line); }
th { font-weight: 500; color: var(--quiet); width: 34%; } td { font-variant-numeric: tabular-nums; }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""


def to_html(report: Report) -> str:
    """Write a check-up as a complete HTML document."""
    found = report.as_dict()
    name = escape(report.module)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>Check-up of {name}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{name}</h1>
<p class="{report.verdict}"><strong style="color: var(--tone)">{VERDICTS[report.verdict]}</strong></p>
<p class="summary">{_counts(report)}</p>
{_sections(report)}
<h2>Taken for granted</h2>
<div class="card not_applicable">{_table(found["assumed"])}</div>
</main>
</body>
</html>
"""


def _counts(report: Report) -> str:
    numbers = {status: sum(check.status == status for check in report.checks) for status in TITLES}
    told = [f"{number} {WORDS[status]}" for status, number in numbers.items() if number]
    return f"{len(report.checks)} checks: {', '.join(told)}" if told else "No check was asked for."


def _sections(report: Report) -> str:
    sections = (
        f"<section>\n<h2>{TITLES[status]}</h2>\n" + "".join(_card(*pair) for pair in pairs) + "</section>\n"
        for status, pairs in groups(report)
    )
    return "".join(sections)


def _card(names: str, check: CheckResult) -> str:
    found = check.as_dict()
    title = f'<h3>{escape(names)}</h3><span class="mark">{WORDS[check.status]}</span>'
    parts = [title, f"<p>{escape(check.reason)}</p>"]
    if check.cause:
        parts.append(f"<p>Likely cause: {escape(check.cause)}</p>")
    if check.where is not None:
        line = f"{check.where.file}:{check.where.line}"
        code = f"\n{escape(check.where.code)}" if check.where.code else ""
        parts.append(f"<pre><span class='summary'>{escape(line)}</span>{code}</pre>")
    if found["evidence"]:
        parts.append(f"<details><summary>Evidence</summary>{_table(found['evidence'])}</details>")
    return f'<article class="card {check.status}">{"".join(parts)}</article>\n'


def _table(pairs: Mapping[str, Any]) -> str:
    rows = (f"<tr><th scope='row'>{escape(_spaced(n))}</th><td>{_cell(v)}</td></tr>" for n, v in pairs.items())
    return f"<table>{''.join(rows)}</table>" if pairs else "<p>Nothing.</p>"


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return _table(value)
    return escape(spell(value))


def _spaced(name: str) -> str:
    return name.replace("_", " ")
