"""An audit's findings as SARIF 2.1.0, which code-scanning services read (OASIS, 2020)."""

from __future__ import annotations

from typing import Any

from quintain.audits.report import Report
from quintain.audits.weaknesses import WEAKNESSES

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_sarif(report: Report, target: str, version: str) -> dict[str, Any]:
    """One run with a rule for each weakness found.

    Args:
        report: of the audit.
        target: what was audited; a path of a file makes it the location.
        version: of this package.
    """
    rules = sorted({finding.weakness for finding in report.findings})
    path = target.partition(".py")[0] + ".py" if ".py" in target else ""
    where: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": f"{report.environment}:{report.verifier}"}]
    }
    if path:
        where["physicalLocation"] = {"artifactLocation": {"uri": path}, "region": {"startLine": 1}}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "quintain audit",
                        "version": version,
                        "informationUri": "https://pypi.org/project/quintain/",
                        "rules": [
                            {"id": rule, "shortDescription": {"text": WEAKNESSES[rule]}}
                            for rule in rules
                        ],
                    }
                },
                "results": [
                    {
                        "ruleId": finding.weakness,
                        "ruleIndex": rules.index(finding.weakness),
                        "level": "error",
                        "message": {
                            "text": f"{finding.submission} on task {finding.task_id} "
                            f"{finding.detail}. Show it again: {finding.command(target)}"
                        },
                        "locations": [where],
                        "partialFingerprints": {"quintain/v1": finding.id},
                    }
                    for finding in report.findings
                ],
            }
        ],
    }
