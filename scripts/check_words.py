"""Fails when a word that this project avoids is used in code, messages or documentation.

`python scripts/check_words.py [FILE ...]` checks these files, or everything under version control
that users or contributors read.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# What to avoid, and what to write instead.
BANNED = {
    r"anew": "again",
    r"asked for": "requested",
    r"at the least": "at least",
    r"deput(y|ies|ize)": "standby",
    r"dismiss(es|ed)?": "stop",
    r"entrust(s|ed)?": "pass",
    r"fates?": "state, outcome",
    r"for ever": "never expires, indefinitely",
    r"foresee[ns]?|foresight": "preview",
    r"g[ai]ven? back|giv(e|es|ing) back": "terminate, release, return",
    r"hand(s|ed)? over|handover": "deploy, config",
    r"hotline": "agent, endpoint",
    r"in words": "as text",
    r"judge?ments?": "check",
    r"look(s|ed|ing)? after": "manage, monitor",
    r"mend(s|ed|ing)?": "fix",
    r"nobody|somebody": "name the component or use the passive",
    r"not to be": "cannot be, must not be",
    r"of one's own": "own, separate",
    r"one hand": "exclusive access",
    r"parcel": "archive",
    r"pulse": "heartbeat",
    r"quarters": "node runner",
    r"receipts?": "applied state",
    r"reception": "agent server",
    r"rehears(e|es|ed|al)": "dry run",
    r"side by side": "in parallel",
    r"stands? still|stood still": "is stalled",
    r"take(s|n)? stock": "list, probe",
    r"the same instant": "at the same time, in parallel",
    r"to be had": "available",
    r"told": "reported, notified",
    r"vigil": "waiter",
    r"vitals": "probe",
    r"whoever": "the caller, the component",
    r"wish(es|ed)?": "request, requirement",
    r"workshop": "node manager",
}
# Uses that are right: (file suffix, line pattern).
ALLOWED = [
    ("", r"check_words"),
    ("", r"user nobody|nobody:|\"nobody\"|'nobody'"),  # the Unix user
]
PATHS = ["src", "adaptdl", "docs", "examples", "benchmarks", "scripts"]
FILES = ["README.md", "CONTRIBUTING.md", "Makefile", "mkdocs.yml"]
SUFFIXES = (".py", ".md", ".sh", ".yaml", ".yml", ".toml", "Makefile")


# Words in identifiers count too: `told_error` contains "told".
def _pattern(words: str) -> re.Pattern[str]:
    words = words.replace(" ", "[ _]")
    return re.compile(rf"(?<![A-Za-z])(?:{words})(?![a-z])", re.IGNORECASE)


_PATTERNS = [(_pattern(words), instead) for words, instead in BANNED.items()]
_ANY = _pattern("|".join(BANNED))


def files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *PATHS, *FILES], capture_output=True, text=True, check=True
    )
    return [Path(line) for line in listed.stdout.splitlines() if line.endswith(SUFFIXES)]


def problems(path: Path) -> list[str]:
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not _ANY.search(line):
            continue
        if any(str(path).endswith(end) and re.search(use, line) for end, use in ALLOWED):
            continue
        for pattern, instead in _PATTERNS:
            if match := pattern.search(line):
                found.append(f"{path}:{number}: {match.group()!r}: write {instead}")
    return found


def main(arguments: list[str]) -> int:
    chosen = [Path(a) for a in arguments] or [
        path for path in files() if path.exists() and path.name != "check_words.py"
    ]
    found = [problem for path in chosen for problem in problems(path)]
    print("\n".join(found) or "no banned words")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
