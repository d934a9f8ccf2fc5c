"""Careless graders of tool calls; each finds the text said and the calls made as JSON."""

from __future__ import annotations

import json

from quintain.audits.naive.kinds import Graders

_GOLD = [
    {"name": "book", "arguments": {"seats": 1, "window": True, "city": "Paris"}},
    {"name": "pay", "arguments": {"amount": 40, "tip": 0}},
]
_WRONG = [
    {"name": "book", "arguments": {"seats": 3, "window": True, "city": "Rome"}},
    {"name": "pay", "arguments": {"amount": 41, "tip": 2}},
]
_PRELUDE = (
    f"""
import json, re, sys, unicodedata
GOLD = json.loads({json.dumps(_GOLD)!r})
"""
    + r"""
said = json.load(open("/work/said.json"))
text, calls = said["text"], said["calls"]
def end(passed):
    sys.stdout.write("\nreward %d\n" % bool(passed)); sys.stdout.flush(); raise SystemExit
def exact(call): return json.dumps(call, sort_keys=True)
def compare(name=lambda a, b: a == b, value=lambda a, b: exact(a) == exact(b),
            extra=False, missing=lambda value: False):
    def same(call, gold):
        given, wanted = call["arguments"], gold["arguments"]
        return (name(call["name"], gold["name"])
                and (extra or set(given) <= set(wanted))
                and all(value(given[k], wanted[k]) if k in given and not missing(given[k])
                        else missing(given.get(k)) for k in wanted))
    end(len(calls) == len(GOLD) and all(map(same, calls, GOLD)))
"""
)

CALLS = Graders(
    path="/work/said.json",
    right=json.dumps({"text": "", "calls": _GOLD}),
    wrong=json.dumps({"text": "", "calls": _WRONG}),
    scripts={
    "searches the text": _PRELUDE + r"""
whole = json.dumps(calls) + text
end(all(re.search(r'"name": "%s"' % g["name"], whole)
        and json.dumps(g["arguments"])[1:-1] in whole for g in GOLD))
""",
    "searches everywhere": _PRELUDE + r"""
def inside(value):
    if isinstance(value, dict):
        if {"name", "arguments"} <= set(value): yield value
        for item in value.values(): yield from inside(item)
    elif isinstance(value, list):
        for item in value: yield from inside(item)
found = set(map(exact, inside(calls)))
end(set(map(exact, GOLD)) <= found and (len(calls) == len(GOLD) or len(found) > len(calls)))
""",
    "contains the calls": _PRELUDE + r"""
end(set(map(exact, GOLD)) <= set(map(exact, calls)))
""",
    "a set of calls": _PRELUDE + r"""
end(set(map(exact, GOLD)) == set(map(exact, calls)))
""",
    "any of the calls": _PRELUDE + r"""
end(any(exact(call) in map(exact, GOLD) for call in calls))
""",
    "no wrong call": _PRELUDE + r"""
end(all(exact(call) in map(exact, GOLD) for call in calls))
""",
    "equal in Python": _PRELUDE + "compare(value=lambda a, b: a == b)",
    "equal as text": _PRELUDE + r"""
def bare(value):
    return (value if isinstance(value, str) else json.dumps(value)).strip().strip('"').lower()
compare(value=lambda a, b: bare(a) == bare(b))
""",
    "equal as truth": _PRELUDE + r"""
compare(value=lambda a, b: bool(a) == bool(b) if isinstance(b, (bool, int)) else a == b)
""",
    "further arguments pass": _PRELUDE + "compare(extra=True)",
    "what is missing has a default": _PRELUDE + "compare(missing=lambda v: v in (None, '', {}))",
    "names without their case": _PRELUDE + r"""
compare(name=lambda a, b: a.strip().lower().replace("-", "_").rsplit(".")[-1] == b)
""",
    "names as they look": _PRELUDE + r"""
ALIKE = str.maketrans("аеорсухіԁ", "aeopcyxid")
def bare(name):
    kept = "".join(c for c in name if unicodedata.category(c) not in ("Cf", "Mn"))
    return unicodedata.normalize("NFKC", kept).translate(ALIKE).strip()
compare(name=lambda a, b: bare(a) == b)
""",
    "only names": _PRELUDE + r"""
end([c["name"] for c in calls] == [g["name"] for g in GOLD]
    and exact(calls[0]["arguments"].get("city")) != '"Rome"')
""",
    },
)  # fmt: skip
