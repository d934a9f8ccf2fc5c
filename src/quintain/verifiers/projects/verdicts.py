"""From what pytest said to a verdict: exactly the expected tests, once each, all passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from quintain.verdict import Check

PHASES = ("setup", "call", "teardown")


def checks_of(expected: Sequence[str], told: dict[str, Any]) -> list[Check]:
    """One check for the set of tests, and one for each test.

    A test counts as passed when its three phases were reported once each and all passed, and it was
    not expected to fail. Skipped, missing and doubled tests have not passed.
    """
    collected = Counter(told["collected"])
    problems = [str(problem) for problem in told["problems"]]
    wrong = ""
    if problems:
        wrong = problems[0][-600:]
    elif missing := [each for each in expected if each not in collected]:
        wrong = f"missing: {', '.join(missing)[:400]}"
    elif extra := sorted(set(collected) - set(expected)):
        wrong = f"not expected: {', '.join(extra)[:400]}"
    elif twice := [each for each, count in collected.items() if count > 1]:
        wrong = f"more than once: {', '.join(twice)[:400]}"
    reports: dict[str, list[dict[str, Any]]] = {}
    for report in told["reports"]:
        reports.setdefault(report["id"], []).append(report)
    checks = [Check(name="set of tests", passed=not wrong, detail=wrong)]
    for each in expected:
        why = _wrong(reports.get(each, []))
        checks.append(Check(name=each, passed=not why, detail=why))
    return checks


def _wrong(reports: Sequence[dict[str, Any]]) -> str:
    for report in reports:
        if report["outcome"] == "failed":
            return f"{report['when']} failed: {report['text']}".strip()
        if report["xfail"]:
            return "expected to fail, which proves nothing"
        if report["outcome"] != "passed":
            return str(report["outcome"])
    phases = tuple(report["when"] for report in reports)
    if phases != PHASES:
        return f"reported {', '.join(phases)}" if phases else "did not run"
    return ""
