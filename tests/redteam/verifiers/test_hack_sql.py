"""Queries that write, reach out, exhaust or guess earn nothing and leave nothing."""

import asyncio
import sqlite3

import pytest

from quintain.verdict import Outcome
from quintain.verifiers.sql import Sql

TABLE = "CREATE TABLE t (x INTEGER); INSERT INTO t VALUES "
GOLD = "SELECT sum(x) AS s FROM t"


def question(engine="sqlite"):
    bases = [{"setup": f"{TABLE}(1), (2)"}, {"setup": f"{TABLE}(5), (6), (7)"}]
    return {"engine": engine, "query": GOLD, "databases": bases}


BOMB = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
BOTH = {
    "constant": "SELECT 3",
    "other_constant": "SELECT 18",
    "constants_of_both": "SELECT 3 UNION SELECT 18",
    "insert": "INSERT INTO t VALUES (1)",
    "delete": "DELETE FROM t",
    "drop": "DROP TABLE t",
    "create": "CREATE TABLE u AS SELECT 3",
    "create_view": "CREATE VIEW v AS SELECT 3",
    "two_statements": f"DELETE FROM t; {GOLD}",
    "two_reads": f"SELECT 1; {GOLD}",
    "begin": "BEGIN",
    "pragma": "PRAGMA user_version",
    "bomb": f"{BOMB} sum(i) FROM n",
    "rows": f"{BOMB} i FROM n",
    "product": "SELECT count(*) FROM t a, t b, t c, t d, t e, t f, t g, t h, t i, t j, t k, t l, "
    "t m, t n, t o, t p, t q, t r, t s, t u, t v, t w, t x, t y, t z, t aa, t bb, t cc, t dd",
    "deep": "SELECT " + "(" * 20000 + "1" + ")" * 20000,
    "long": "SELECT '" + "x" * 200_000 + "'",
    "nul": "SELECT 3 \0",
    "not_text": "SELECT '\ud800'",
    "comment_only": "-- SELECT sum(x) FROM t",
    "empty_fence": "```sql\n```",
}
IN_DUCKDB = ("constant", "insert", "two_statements", "bomb", "deep", "not_text", "empty_fence")
SQLITE = {
    "attach": "ATTACH DATABASE '{path}' AS a",
    "vacuum_into": "VACUUM INTO '{path}'",
    "extension": "SELECT load_extension('{path}')",
    "schema": "SELECT count(*) FROM sqlite_master",
    "pragma_table": "SELECT * FROM pragma_database_list",
    "function_table": "SELECT * FROM dbstat",
    "random": "SELECT CASE abs(random()) % 2 WHEN 0 THEN 3 ELSE 18 END",
    "blob": "SELECT zeroblob(2000000000)",
    "printf": "SELECT printf('%.*c', 2000000000, 'x')",
    "group_concat": f"{BOMB} group_concat(printf('%.*c', 1000000, 'x')) FROM n",
    "like": "SELECT '" + "a" * 900 + "' LIKE '" + "%a" * 400 + "b'",
    "tokenizer": "SELECT fts3_tokenizer('simple')",
    "virtual": "CREATE VIRTUAL TABLE f USING fts3(x)",
    "tcl": "SELECT readfile('{path}')",
}
DUCKDB = {
    "attach": "ATTACH '{path}' AS a",
    "copy_out": f"COPY ({GOLD}) TO '{{path}}'",
    "copy_in": "COPY t FROM '{path}'",
    "export": "EXPORT DATABASE '{path}'",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "set": "SET enable_external_access = true",
    "set_in_front": f"SET enable_external_access = true; {GOLD}",
    "read_csv": "SELECT * FROM read_csv('{path}')",
    "read_text": "SELECT content FROM read_text('{path}')",
    "read_blob": "SELECT content FROM read_blob('/etc/passwd')",
    "by_name": "SELECT * FROM '{path}'",
    "glob": "SELECT * FROM glob('/etc/*')",
    "http": "SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')",
    "python_variable": "SELECT * FROM job",
    "environment": "SELECT getenv('HOME')",
    "macro": "CREATE MACRO m() AS 3",
    "call": "CALL pragma_version()",
    "prepare": f"PREPARE p AS {GOLD}",
    "explain": f"EXPLAIN {GOLD}",
    "repeat": "SELECT repeat('x', 4000000000)",
    "range": "SELECT list(i) FROM range(100000000000) r(i)",
}


async def test_sqlite(bench, tmp_path):
    await attack(bench, tmp_path, "sqlite", {**BOTH, **SQLITE})


async def test_duckdb(bench, tmp_path):
    pytest.importorskip("duckdb", reason="pip install 'quintain[sql]'")
    await attack(bench, tmp_path, "duckdb", {**{name: BOTH[name] for name in IN_DUCKDB}, **DUCKDB})


async def attack(bench, folder, engine, queries):
    secret = folder / "secret"
    secret.write_text("3\n")
    verifier, answer = Sql(cpu_s=0.3), question(engine)
    gate = asyncio.Semaphore(3)

    async def outcome(query):
        async with gate:
            return await bench.judge(verifier, query.replace("{path}", str(secret)), answer)

    verdicts = await asyncio.gather(*map(outcome, queries.values()))
    passed = {
        name: verdict
        for name, verdict in zip(queries, verdicts, strict=True)
        if verdict.outcome is not Outcome.FAILED
    }
    assert not passed
    assert [path.name for path in folder.iterdir()] == ["secret"]
    assert secret.read_text() == "3\n"
    assert (await bench.judge(verifier, GOLD, answer)).outcome is Outcome.SOLVED


def naive(query):
    """A grader with one database and a connection of its own for both queries, as many have."""
    base = sqlite3.connect(":memory:")
    base.executescript(f"{TABLE}(1), (2)")
    *first, last = query.split(";")
    for statement in first:
        base.execute(statement)
    found = base.execute(last).fetchall() or [(None,)]
    return found == base.execute(GOLD).fetchall()


@pytest.mark.parametrize(
    ("query", "fooled"),
    [
        (BOTH["constant"], True),
        ("DELETE FROM t; INSERT INTO t VALUES (7); SELECT 7", True),
        (GOLD, True),
        (BOTH["other_constant"], False),
    ],
)
def test_the_naive_grader_is_fooled(query, fooled):
    assert naive(query) is fooled


async def test_what_fools_it_fails_here(bench):
    for query in (BOTH["constant"], "DELETE FROM t; INSERT INTO t VALUES (7); SELECT 7"):
        assert (await bench.judge(Sql(), query, question())).outcome is Outcome.FAILED
