"""Attack: a name that looks as if it were below a listed suffix."""

from __future__ import annotations

from loopback import Site

INSIDE = ["a.wild.test", "a.b.wild.test", "A.WILD.test", "a.wild.test."]
OUTSIDE = [
    "wild.test",
    "evil-wild.test",
    "evilwild.test",
    "a.wild.test.evil.test",
    "a.wild.test..",
    ".wild.test",
    "a..wild.test",
    "*.wild.test",
    "a.wild.test@evil.test",
    "evil.test#.wild.test",
    "evil.test?.wild.test",
    "evil.test/.wild.test",
    "evil.test\\.wild.test",
    "evil.test%2f.wild.test",
    "evil.test%00.wild.test",
    "evil.test:80.wild.test",
    "evil。wild.test",
    "evil.test．wild.test",
    "a.wıld.test",
    "a.wild.tesт",
]


def loose(name):
    """A check that many proxies make: does the name end as the rule does?"""
    return name.rstrip(".").endswith("wild.test")


async def test_outside(networked, raw, names, decisions):
    for name in (*OUTSIDE, "evil.test"):
        names.answers[name] = [["127.0.0.1"]]
    async with Site() as site:
        sandbox = await networked(private_hosts=[f"*.wild.test:{site.port}"])
        request = "GET {}/ HTTP/1.1\r\nHost: {}\r\n\r\n".format
        hosts = [f"{name}:{site.port}" for name in OUTSIDE]
        control = await raw(None, *[request("", where) for where in hosts], port=site.port)
        assert all("hello" in answer for answer in control)
        answers = await raw(sandbox, *[request(f"http://{where}", where) for where in hosts])
        connects = [f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n" for where in hosts]
        answers += await raw(sandbox, *connects)
    assert len(site.got) == len(OUTSIDE)
    for where, answer in zip(hosts * 2, answers, strict=True):
        assert answer.startswith(("HTTP/1.1 403", "HTTP/1.1 400")), (where, answer)
    assert names.asked == []
    assert {decision for decision, _ in await decisions(sandbox)} == {"refused"}


async def test_a_loose_check_would_let_some_pass():
    assert [name for name in OUTSIDE if loose(name)][:3] == OUTSIDE[:3]


async def test_inside(networked, raw, names):
    names.answers.update({"a.wild.test": [["127.0.0.1"]], "a.b.wild.test": [["127.0.0.1"]]})
    async with Site() as site:
        sandbox = await networked(private_hosts=[f"*.wild.test:{site.port}"])
        request = "GET http://{0}/ HTTP/1.1\r\nHost: {0}\r\n\r\n".format
        requests = [request(f"{name}:{site.port}") for name in INSIDE]
        answers = await raw(sandbox, *requests, then_close=True)
    assert all(answer.endswith("hello") for answer in answers), answers
    hosts = [got.partition(b"Host: ")[2].partition(b":")[0] for got in site.got]
    assert hosts == [b"a.wild.test", b"a.b.wild.test", b"a.wild.test", b"a.wild.test"]
