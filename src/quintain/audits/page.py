"""An audit as one HTML page without scripts or anything from elsewhere."""

from __future__ import annotations

from html import escape

from quintain.audits.report import Report

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%}td,th{padding:.25rem .6rem;text-align:left;
border-bottom:1px solid #ddd;vertical-align:top}pre{background:#f5f5f5;padding:.6rem;overflow:auto;
max-height:20rem}.bad{color:#a11}.good{color:#171}summary{cursor:pointer}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}pre{background:#222}
td,th{border-color:#333}.bad{color:#f77}.good{color:#7d7}}
"""


def to_html(report: Report, target: str) -> str:
    """The page.

    Args:
        report: of the audit.
        target: what `quintain audit` was called with.
    """
    problems = report.problems()
    verdict = (
        '<p class="good">Nothing here speaks against training with this verifier.</p>'
        if not problems
        else '<ul class="bad">' + "".join(f"<li>{escape(p)}</li>" for p in problems) + "</ul>"
    )
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in report.rows()
    )
    findings = "".join(
        f"<details><summary>{escape(found.title)}: {escape(found.submission)} on "
        f"{escape(found.task_id)} {escape(found.detail)}</summary>"
        f"<pre>{escape(_said(found.script))}</pre>"
        f"<p>rewards {escape(str(list(found.rewards)))}; the verifier: "
        f"{escape(found.explanation)}</p><pre>{escape(found.command(target))}</pre></details>"
        for found in report.findings
    )
    leads = "".join(
        f"<li>{escape(t.submission.name)} on {escape(t.task.id)}</li>" for t in report.leads
    )
    looks = "".join(
        f"<li>{escape(leak.where)}: {escape(leak.what)}</li>"
        for leak in report.leaks
        if not leak.certain
    )
    looks += "".join(f"<li>{escape(line)}</li>" for line in report.survivors)
    parts = "".join(f"<li>{escape(k)}: {escape(v)}</li>" for k, v in report.unmeasured.items())
    unmeasured = ", ".join(f"{k} {v}" for k, v in report.not_measured.items())
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width">'
        f"<title>Audit of {escape(report.environment)}</title><style>{STYLE}</style>"
        f"<h1>Audit of {escape(report.environment)}</h1>"
        f"<p>Verifier {escape(report.verifier)}.</p>"
        f"{verdict}<h2>Measured</h2><table>{rows}</table>"
        f"<h2>Findings</h2>{findings or '<p>None.</p>'}"
        + (f"<h2>To look at</h2><ul>{leads}{looks}</ul>" if leads or looks else "")
        + f"<h2>Not measured</h2><ul>{parts}</ul><p>{escape(unmeasured)}</p></html>"
    )


def _said(script: tuple[object, ...]) -> str:
    out = []
    for message in script:
        assert isinstance(message, dict)
        for part in message["content"]:
            out.append(part.get("text") or str(part))
    return "\n".join(out)
