"""Naming many flags, parts of one, or one that served before finds nothing."""

from quintain.verdict import Outcome
from quintain.verifiers.flag import Flag


def naive(flag, text):
    """As most graders of such tasks: the flag somewhere in the text."""
    return flag in text


async def test_sprays(bench):
    verifier = Flag()
    flag, stale = verifier.of("t", 0), verifier.of("t", 1)
    passes_the_naive_one = {
        "list": f"flag{{a}} flag{{b}} {flag} flag{{c}}",
        "two": f"{flag} or {stale}",
        "longer_list": "\n".join([*(f"flag{{{n:032x}}}" for n in range(500)), flag]),
    }
    others = {
        "part": flag[: len(flag) // 2],
        "inside": flag[5:-1],
        "spelt": " ".join(flag),
        "upper": flag.upper(),
        "stale": stale,
        "pattern": "flag{[0-9a-f]{32}}",
        "wildcard": "flag{*}",
        "look_alike": flag.replace("a", "\u0430").replace("0", "O"),
        "empty": "flag{}",
    }
    for name, text in {**passes_the_naive_one, **others}.items():
        assert (await bench.judge(verifier, text)).outcome is Outcome.FAILED, name
        assert naive(flag, text) == (name in passes_the_naive_one), name
