"""A certificate in the formats of other tools: SARIF for code scanning, JUnit XML for CI, and a badge."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from backend.domain.environments.audit_coverage import audit_coverage
from backend.domain.environments.packages import MANIFEST_PATH
from backend.domain.text import plain_text
from backend.domain.vocabulary import CheckStatus

_NOT_XML = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
_LEVELS = {CheckStatus.FAILED: "error", CheckStatus.WARNED: "warning", CheckStatus.SKIPPED: "note"}
_COLORS = {"passed": "#2e7d32", "warned": "#9a6700", "failed": "#b3261e", "not checked": "#5f6368"}
Results = Sequence[Mapping[str, Any]]
"""`CheckResult`s as JSON."""


def as_sarif(title: str, content_hash: str, results: Results, *, proctor: str) -> dict[str, Any]:
    """Return a SARIF 2.1.0 log. Every check is a rule; results are the failed, warned and skipped ones.

    Checks that passed or do not apply are no results, because code scanning turns every result into an alert.
    https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    rules, found = [], []
    coverage = audit_coverage(results)
    for index, each in enumerate(results):
        rule = {
            "id": each["check"],
            "name": each.get("label") or each["check"],
            "shortDescription": {"text": plain_text(each["sentence"])},
            "properties": {"tags": [each["theme"]] if each.get("theme") else []},
        }
        if each.get("advice"):
            rule["help"] = {"text": plain_text(each["advice"])}
        rules.append(rule)
        if (level := _LEVELS.get(each["status"])) is None or not each.get("applies", True):
            continue
        missed = each.get("details", {}).get("missed") or []  # branches that no answer executed
        found.append(
            {
                "ruleId": each["check"],
                "ruleIndex": index,
                "kind": "fail",
                "level": level,
                "message": {"text": plain_text(each["evidence"]) or plain_text(each["sentence"])},
                "locations": [
                    {"physicalLocation": {"artifactLocation": {"uri": MANIFEST_PATH}, "region": {"startLine": 1}}}
                ],
                "relatedLocations": [
                    {
                        "physicalLocation": {
                            "artifactLocation": {"uri": branch["path"]},
                            "region": {"startLine": branch["line"]},
                        },
                        "message": {"text": f"never {branch['outcome']}: {branch['source']}"},
                    }
                    for branch in missed
                ],
                "partialFingerprints": {"check/v1": each["check"]},
                "properties": {
                    "status": each["status"],
                    "seconds": each.get("seconds", 0.0),
                    "episodes": each.get("episodes", 0),
                    "rollouts": each.get("rollouts", []),
                },
            }
        )
    driver = {"name": "Proctor", "version": proctor, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"proctor/{title}/"},
        "results": found,
        "properties": {"environment": title, "contentHash": content_hash}
        | ({"coverage": asdict(coverage)} if coverage else {}),
    }
    return {"version": "2.1.0", "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "runs": [run]}


def as_junit(title: str, content_hash: str, results: Results, checked_at: datetime) -> str:
    """Return JUnit XML with a test case per check. Warnings, which JUnit does not know, pass with a note as output."""

    def clean(text: object) -> str:
        return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", str(text))

    counted = {
        "tests": len(results),
        "failures": sum(each["status"] == CheckStatus.FAILED for each in results),
        "errors": 0,
        "skipped": sum(each["status"] == CheckStatus.SKIPPED for each in results),
        "time": f"{sum(each.get('seconds', 0.0) for each in results):.3f}",
    }
    figures = {name: str(value) for name, value in counted.items()}
    root = ElementTree.Element("testsuites", {"name": "Proctor", **figures})
    stamp = checked_at.strftime("%Y-%m-%dT%H:%M:%S")
    suite = ElementTree.SubElement(root, "testsuite", {"name": clean(title), "timestamp": stamp, **figures})
    properties = ElementTree.SubElement(suite, "properties")
    ElementTree.SubElement(properties, "property", {"name": "content_hash", "value": content_hash})
    if coverage := audit_coverage(results):
        figures = {each.check: f"{each.share:.4f} [{each.low:.4f}, {each.high:.4f}]" for each in coverage.shares}
        if coverage.score is not None:
            figures["coverage"] = f"{coverage.score:.4f} [{coverage.low:.4f}, {coverage.high:.4f}]"
        for name, value in figures.items():
            ElementTree.SubElement(properties, "property", {"name": name, "value": value})
    for each in results:
        names = {"classname": f"{clean(title)}.{clean(each.get('theme') or 'checks')}", "name": clean(each["check"])}
        case = ElementTree.SubElement(suite, "testcase", {**names, "time": f"{each.get('seconds', 0.0):.3f}"})
        evidence, texts = clean(each["evidence"]), (each["sentence"], each["evidence"], each.get("advice"))
        if each["status"] == CheckStatus.FAILED:
            failure = ElementTree.SubElement(case, "failure", {"message": evidence, "type": clean(each["check"])})
            failure.text = clean("\n".join(filter(None, texts)))
        elif each["status"] == CheckStatus.SKIPPED:
            ElementTree.SubElement(case, "skipped", {"message": evidence})
        elif each["status"] == CheckStatus.WARNED:
            ElementTree.SubElement(case, "system-out").text = clean("\n".join(("warned", *filter(None, texts))))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def as_badge(title: str, status: str, *, details: str = "") -> str:
    """Return an SVG with the environment's version and the status. It loads nothing. `details`: its tooltip."""
    value = "not checked" if status not in _COLORS else f"checks {status}" if status != "not checked" else status
    left, right = (round(6.2 * len(text) + 16) for text in (title, value))
    label, words = (escape(text, {'"': "&quot;"}) for text in (title, value))
    tip = f"<title>{escape(details or f'{title}: {value}')}</title>"
    font = 'font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" fill="#fff" text-anchor="middle"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {words}">{tip}'
        f'<clipPath id="edge"><rect width="{left + right}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#edge)"><rect width="{left}" height="20" fill="#3c4043"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{_COLORS.get(status, _COLORS["not checked"])}"/></g>'
        f'<g {font}><text x="{left / 2}" y="14" textLength="{left - 12}">{label}</text>'
        f'<text x="{left + right / 2}" y="14" textLength="{right - 12}">{words}</text></g></svg>\n'
    )
