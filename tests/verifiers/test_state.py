"""State judged from outside: files, SQLite files, the host-side world, a server's own word."""

import json
import sqlite3
from dataclasses import replace

import pytest
from aiohttp import web

import quintain as q
from quintain.errors import ConfigError, TaskError, VerifierError
from quintain.protocols import WORLD_ARTIFACT
from quintain.task import SandboxSpec, Task
from quintain.verdict import Outcome
from quintain.verifiers.database import Database
from quintain.verifiers.server_state import Server, matches
from quintain.verifiers.state import Files, World


@pytest.fixture
async def box(bench):
    box = await bench.open_sandbox(SandboxSpec())
    yield box
    await box.close()


def files(**more):
    return {
        "files": {
            "out/a.txt": {"text": "one\ntwo\n", "mode": "640"},
            "out/b.json": {"value": {"n": 1, "list": [True, None]}},
            "link": {"link": "out/a.txt"},
            "old": {"absent": True},
        },
        **more,
    }


async def solved(box):
    await box.write("out/a.txt", "one  \r\ntwo", mode=0o640)
    await box.write("out/b.json", '{"list": [true, null], "n": 1}')
    assert (await box.exec(["ln", "-s", "out/a.txt", "link"])).ok


async def test_files(bench, box):
    await solved(box)
    for answer in (files(), files(only=True)):
        verdict = await bench.judge(Files(), "done", answer, sandbox=box)
        assert verdict.passed, verdict.explanation
    assert (verdict.verifier, verdict.kind) == ("files", "formal")


OTHER_FILES = [
    ("rm out/a.txt", "out/a.txt"),
    ("chmod 666 out/a.txt", "out/a.txt"),
    ("echo more >> out/a.txt", "out/a.txt"),
    ("echo '{\"n\": 1.5}' > out/b.json", "out/b.json"),
    ('echo \'{"n": true, "list": [true, null]}\' > out/b.json', "out/b.json"),
    ("rm out/b.json; mkfifo out/b.json", "out/b.json"),
    ("rm out/b.json; ln -s loop out/b.json", "out/b.json"),
    ("rm link; cp out/a.txt link", "link"),
    ("ln -sf /etc/passwd link", "link"),
    ("mkdir old", "old"),
    ("ln -s nowhere old", "old"),
    ("touch .hidden", "no others"),
]


async def test_other_files(bench):
    for script, check in OTHER_FILES:
        box = await bench.open_sandbox(SandboxSpec())
        try:
            await solved(box)
            assert (await box.exec(["sh", "-c", script])).ok
            verdict = await bench.judge(Files(), "done", files(only=True), sandbox=box)
        finally:
            await box.close()
        assert verdict.reward == 0.0, script
        assert check in [c.name for c in verdict.checks if not c.passed], script


async def test_files_that_may_be_there(bench, box):
    await solved(box)
    await box.write("deep/__pycache__/x.pyc", b"1")
    answer = files(only=True, ignore=["*__pycache__*"])
    assert (await bench.judge(Files(), "done", answer, sandbox=box)).passed


async def test_more_files_than_can_be_listed(bench, box):
    await solved(box)
    script = "mkdir many; cd many; seq 1 10500 | xargs touch"
    assert (await box.exec(["sh", "-c", script])).ok
    verdict = await bench.judge(Files(), "done", files(), sandbox=box)
    assert verdict.reward == 0.0
    assert "cannot be listed" in verdict.explanation


async def test_kept_artifacts(bench):
    answer = {"files": {"a": {"exact": "1"}}}
    context = bench.context("", answer)
    for data, outcome in ((b"1", Outcome.SOLVED), (b"1 ", Outcome.FAILED), (None, Outcome.FAILED)):
        kept = replace(context, artifact={"a": data}.get)
        assert (await Files().judge(kept)).outcome is outcome
    with pytest.raises(VerifierError, match="need the episode's sandbox"):
        await bench.judge(Files(), "", files())


async def test_a_sandbox_that_cannot_list(bench, box):
    box.capabilities = frozenset()
    with pytest.raises(VerifierError, match="capability 'list'"):
        await bench.judge(Files(), "", files(), sandbox=box)
    del box.capabilities
    await box.write("a", "1")
    assert (await bench.judge(Files(), "", {"files": {"a": {"exact": "1"}}}, sandbox=box)).passed


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"files": {}},
        {"files": {"a": {}}},
        {"files": {"a": {"text": "x", "exact": "x"}}},
        {"files": {"a": {"absent": True, "mode": "644"}}},
        {"files": {"a": {"text": "x", "mode": "rw"}}},
        {"files": {"gone": {"absent": True}}},
        {"files": {"given": {"text": "x"}}},
    ],
)
async def test_files_of_tasks_that_are_refused(answer):
    with pytest.raises(TaskError):
        Files().check_gold(Task(id="t", prompt="?", answer=answer, files={"given": "x\n"}))


# --- databases ---


def image(folder, script, wal=False):
    path = folder / "made.db"
    base = sqlite3.connect(path)
    if wal:
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA wal_autocheckpoint=0")
    base.executescript(script)
    base.commit()
    data = path.read_bytes()
    log = path.with_name("made.db-wal")
    log_data = log.read_bytes() if log.exists() else None
    base.close()
    return data, log_data


USERS = "CREATE TABLE users (name TEXT, age INTEGER); INSERT INTO users VALUES ('ada', 36)"
ROWS = {
    "database": "app.db",
    "queries": [
        {"query": "SELECT name, age FROM users", "rows": [["ada", 36]]},
        {"query": "SELECT count(*) FROM users", "rows": [[1]]},
    ],
}


@pytest.mark.parametrize("wal", [False, True])
async def test_rows_of_a_database(bench, box, tmp_path, wal):
    data, log = image(tmp_path, USERS, wal)
    assert bool(log) is wal
    await box.write("app.db", data)
    if log:
        await box.write("app.db-wal", log)
    verdict = await bench.judge(Database(), "", ROWS, sandbox=box)
    assert verdict.passed, verdict.explanation
    assert (verdict.verifier, verdict.kind) == ("database", "formal")


BASES = {
    "missing": None,
    "empty": b"",
    "junk": b"SQLite format 3\0" + b"\xff" * 5000,
    "text": b"ada, 36",
}


async def test_databases_that_are_wrong(bench, box, tmp_path):
    for script in (
        "CREATE TABLE users (name TEXT, age TEXT); INSERT INTO users VALUES ('ada', '36')",
        USERS + ", ('eve', 1)",
        "CREATE TABLE others (x)",
        "CREATE VIEW users AS SELECT load_extension('x') AS name, 36 AS age",
        "CREATE VIEW users AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT 'ada' AS name, max(i) AS age FROM n",
    ):
        BASES[script[:60]] = image(tmp_path, script)[0]
        (tmp_path / "made.db").unlink()
    for name, data in BASES.items():
        if data is not None:
            await box.write("app.db", data)
        verdict = await bench.judge(Database(cpu_s=0.5), "", ROWS, sandbox=box)
        assert verdict.outcome is Outcome.FAILED, (name, verdict)


async def test_a_query_of_the_task_that_is_wrong(bench, box, tmp_path):
    await box.write("app.db", image(tmp_path, USERS)[0])
    answer = {"database": "app.db", "queries": [{"query": "SELEC", "rows": []}]}
    with pytest.raises(TaskError, match="syntax"):
        await bench.judge(Database(), "", answer, sandbox=box)


# --- the world ---

SHOP = {"orders": {"7": "open", "8": "open"}, "log": []}


def cancel(order: str, world) -> str:
    """Cancels an order.

    Args:
        order: its number.
    """
    if order not in world["orders"]:
        raise ValueError("no such order")
    world["orders"][order] = "cancelled"
    world["log"].append(order)
    return "ok"


def world_of(bench, final, answer, world=SHOP):
    context = bench.context("", task=Task(id="t", prompt="?", answer=answer, world=world))
    kept = {} if final is None else {WORLD_ARTIFACT: json.dumps(final).encode()}
    return replace(context, artifact=kept.get)


RIGHT = {"orders": {"8": "open", "7": "cancelled"}, "log": ["7"]}
ACTIONS = {"actions": [{"name": "cancel", "arguments": {"order": "7"}}]}


@pytest.mark.parametrize("answer", [{"world": RIGHT}, ACTIONS])
async def test_worlds(bench, answer):
    verifier = World([cancel])
    assert (await verifier.judge(world_of(bench, RIGHT, answer))).passed
    for wrong in (
        SHOP,
        {**RIGHT, "log": ["7", "7"]},
        {**RIGHT, "more": 1},
        {"orders": {"7": "cancelled"}, "log": ["7"]},
        {**RIGHT, "log": [7]},
    ):
        verdict = await verifier.judge(world_of(bench, wrong, answer))
        assert verdict.outcome is Outcome.FAILED, wrong
    assert (await World([cancel], ignore=["log"]).judge(
        world_of(bench, {**RIGHT, "log": ["x"]}, answer))).passed  # fmt: skip


async def test_worlds_that_are_refused(bench):
    verifier = World([cancel])
    for answer in (
        {"world": SHOP},
        {"actions": []},
        {"actions": [{"name": "cancel", "arguments": {"order": "9"}}]},
        {"actions": [{"name": "cancel", "arguments": {}}]},
        {"actions": [{"name": "steal", "arguments": {}}]},
        {"world": RIGHT, "actions": []},
        {},
    ):
        with pytest.raises(TaskError):
            await verifier.judge(world_of(bench, RIGHT, answer))
    assert (await verifier.judge(world_of(bench, SHOP, {"world": SHOP, "unchanged": True}))).passed
    with pytest.raises(VerifierError, match="kept no world"):
        await verifier.judge(world_of(bench, None, ACTIONS))


async def test_the_world_of_a_real_episode():
    from quintain.messages import ToolCall, assistant

    task = {"prompt": "Cancel order 7.", "world": SHOP, "answer": ACTIONS}
    env = q.Environment([task], World([cancel]), tools=[cancel])
    call = ToolCall(id="1", name="cancel", arguments={"order": "7"})
    right = await q.arollout(env, q.scripted([assistant("", call), "Done."]))
    assert right.outcome is Outcome.SOLVED
    assert WORLD_ARTIFACT in right.artifacts
    claims = await q.arollout(env, q.scripted("Order 7 is cancelled."))
    assert claims.outcome is Outcome.FAILED


# --- a server ---


@pytest.fixture
async def shop():
    """A shop whose page thanks for any order and whose state knows better."""
    state = {"orders": {}}

    async def page(request):
        if request.query.get("really"):
            state["orders"]["7"] = {"state": "paid", "sum": 5, "at": "12:00"}
        return web.Response(text="<h1>Thank you! Order 7 is paid.</h1>", content_type="text/html")

    async def order(request):
        if request.headers.get("X-Judge") != "secret":
            return web.Response(status=403)
        found = state["orders"].get(request.match_info["id"])
        return web.json_response(found) if found else web.Response(status=404)

    async def broken(request):
        return web.Response(status=500)

    async def away(request):
        raise web.HTTPFound("/api/orders/7")

    app = web.Application()
    app.add_routes(
        [
            web.get("/buy", page),
            web.get("/api/orders/{id}", order),
            web.get("/broken", broken),
            web.get("/away", away),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}", state
    await runner.cleanup()


PAID = {"path": "/api/orders/7", "json": {"state": "paid"}, "match": "subset"}


async def test_the_server_is_asked_and_not_the_page(bench, shop):
    import aiohttp

    url, _ = shop
    verifier = Server(url, headers={"X-Judge": "secret"})
    answer = {"server": [PAID, {"path": "/api/orders/8", "status": 404}]}
    async with aiohttp.ClientSession() as browser:
        async with browser.get(f"{url}/buy") as answered:
            assert "paid" in await answered.text()
        shown = await bench.judge(verifier, "The page says: Order 7 is paid.", answer)
        assert shown.outcome is Outcome.FAILED
        async with browser.get(f"{url}/buy?really=1"):
            pass
    assert (await bench.judge(verifier, "done", answer)).passed
    strict = {"server": [{**PAID, "match": "exact"}]}
    assert not (await bench.judge(verifier, "done", strict)).passed
    assert not (await bench.judge(Server(url), "done", answer)).passed
    redirected = {"server": [{**PAID, "path": "/away"}]}
    assert not (await bench.judge(verifier, "done", redirected)).passed


async def test_a_server_that_fails_is_no_verdict(bench, shop):
    url, _ = shop
    with pytest.raises(VerifierError, match="answered 500"):
        await bench.judge(Server(url), "", {"server": [{"path": "/broken", "json": 1}]})
    with pytest.raises(VerifierError, match="no JSON"):
        await bench.judge(Server(url), "", {"server": [{"path": "/buy", "json": 1}]})
    with pytest.raises(VerifierError):
        await bench.judge(Server("http://127.0.0.1:1"), "", {"server": [PAID]})
    context = world_of(bench, {"server_url": url}, {"server": [{"path": "/x", "status": 404}]})
    assert (await Server().judge(context)).passed
    with pytest.raises(VerifierError, match="server_url"):
        await Server().judge(world_of(bench, {}, {"server": [PAID]}))


def test_matching():
    assert matches({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}], "d": 3}, subset=True)
    assert not matches({"a": [1]}, {"a": [1, 2]}, subset=True)
    assert not matches({"a": 1}, {"a": True}, subset=True)
    assert not matches({"a": None}, {}, subset=True)
    with pytest.raises(ConfigError):
        Server("file:///etc/passwd")
