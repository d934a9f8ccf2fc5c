"""Queries judged by their rows on two hidden databases."""

import sqlite3

import pytest

from quintain.errors import ConfigError, TaskError
from quintain.task import Task
from quintain.verifiers.query_runner import run
from quintain.verifiers.result_sets import ResultSet, difference
from quintain.verifiers.sql import Sql, written_query

ENGINES = ["sqlite", "duckdb"]
PEOPLE = "CREATE TABLE people (name TEXT, age INTEGER, paid DOUBLE);"
FIRST = PEOPLE + "INSERT INTO people VALUES ('ada', 36, 0.1), ('bob', 20, 0.2), ('eve', 50, NULL);"
SECOND = PEOPLE + "INSERT INTO people VALUES ('ada', 10, 1.5), ('joe', 44, 2.5), ('kim', 44, 3.5);"
GOLD = "SELECT name, age FROM people WHERE age > 30"


def question(engine="sqlite", query=GOLD, **more):
    bases = [{"setup": FIRST}, {"setup": SECOND}]
    return {"engine": engine, "query": query, "databases": bases, **more}


@pytest.fixture(params=ENGINES)
def engine(request):
    if request.param == "duckdb":
        pytest.importorskip("duckdb", reason="pip install 'quintain[sql]'")
    return request.param


RIGHT = {
    "same": GOLD,
    "fenced": f"Here:\n```sql\n{GOLD};\n```\nas asked.",
    "other_order": GOLD + " ORDER BY age DESC",
    "other_names": "SELECT p.name AS who, p.age + 0 FROM people p WHERE NOT p.age <= 30",
    "comment": f"-- all of them\n{GOLD} -- end",
    "with": f"WITH grown AS ({GOLD}) SELECT * FROM grown",
    "float": "SELECT name, age * 1.0 FROM people WHERE age > 30",
}
WRONG = {
    "empty": "",
    "prose": "I do not know.",
    "all": "SELECT name, age FROM people",
    "star": "SELECT * FROM people WHERE age > 30",
    "swapped": "SELECT age, name FROM people WHERE age > 30",
    "twice": f"{GOLD} UNION ALL {GOLD}",
    "distinct_age": "SELECT min(name), age FROM people WHERE age > 30 GROUP BY age",
    "as_text": "SELECT name, CAST(age AS VARCHAR) FROM people WHERE age > 30",
    "one_column": "SELECT name FROM people WHERE age > 30",
    "none": "SELECT name, age FROM people WHERE age > 99",
    "missing_table": "SELECT * FROM persons",
}


async def test_right_and_wrong(bench, engine):
    verifier = Sql()
    for name, query in RIGHT.items():
        verdict = await bench.judge(verifier, query, question(engine))
        assert verdict.passed, (name, verdict.explanation)
        assert (verdict.verifier, verdict.kind, len(verdict.checks)) == ("sql", "formal", 2)
    for name, query in WRONG.items():
        verdict = await bench.judge(verifier, query, question(engine))
        assert verdict.reward == 0.0, (name, verdict)


async def test_order_counts_where_it_is_declared(bench, engine):
    gold = f"{GOLD} ORDER BY age DESC, name"
    answer = question(engine, gold, ordered=True)
    assert (await bench.judge(Sql(), gold, answer)).passed
    assert not (await bench.judge(Sql(), f"{GOLD} ORDER BY age, name DESC", answer)).passed


async def test_null_is_no_zero_and_floats_have_a_tolerance(bench, engine):
    answer = question(engine, "SELECT paid FROM people")
    assert (await bench.judge(Sql(), "SELECT paid + 1e-15 FROM people", answer)).passed
    assert not (await bench.judge(Sql(), "SELECT coalesce(paid, 0) FROM people", answer)).passed
    assert not (await bench.judge(Sql(), "SELECT paid + 0.01 FROM people", answer)).passed
    loose = {**answer, "tolerance": {"abs": 0.1}}
    assert (await bench.judge(Sql(), "SELECT paid + 0.01 FROM people", loose)).passed


async def test_names_where_they_are_declared(bench, engine):
    answer = question(engine, names=True)
    assert not (await bench.judge(Sql(), RIGHT["other_names"], answer)).passed
    upper = "SELECT name AS NAME, age FROM people WHERE age > 30"
    assert (await bench.judge(Sql(), upper, answer)).passed


async def test_values_that_json_lacks(bench):
    pytest.importorskip("duckdb", reason="pip install 'quintain[sql]'")
    gold = """SELECT name, DATE '2020-01-02', 1.50::DECIMAL(9,2), [age, 1], {'a': age}, age > 30,
              2::HUGEINT << 90, 'x'::BLOB FROM people"""
    answer = question("duckdb", gold)
    assert (await bench.judge(Sql(), gold, answer)).passed
    for old, new in (("-02", "-03"), ("1.50", "1.51"), ("[age", "[age + 1"), ("'x'", "'y'"),
                     ("age > 30", "(age > 30)::INT"), ("DATE ", "")):  # fmt: skip
        assert not (await bench.judge(Sql(), gold.replace(old, new), answer)).passed, old


async def test_a_file_as_database(bench, tmp_path):
    images = {}
    for name, script in (("a.db", FIRST), ("b.db", SECOND)):
        with sqlite3.connect(tmp_path / name) as base:
            base.executescript(script)
        base.close()
        images[name] = (tmp_path / name).read_bytes()
    answer = {"query": GOLD, "databases": [{"file": "a.db"}, {"file": "b.db"}]}
    task = Task(id="t", prompt="?", answer=answer, hidden_files=images)
    assert (await bench.judge(Sql(), GOLD, task=task)).passed
    assert not (await bench.judge(Sql(), WRONG["all"], task=task)).passed


REFUSED = {
    "one_database": {"databases": [{"setup": FIRST}]},
    "same": {"databases": [{"setup": FIRST}, {"setup": FIRST}]},
    "same_rows_otherwise": {"query": "SELECT name FROM people WHERE name = 'ada'"},
    "empty": {"query": "SELECT name FROM people WHERE age = 20"},
    "broken_gold": {"query": "SELECT nothing FROM people"},
    "broken_setup": {"databases": [{"setup": "CREATE"}, {"setup": SECOND}]},
    "no_setup": {"databases": [{}, {}]},
    "no_file": {"databases": [{"file": "x"}, {"file": "y"}]},
    "engine": {"engine": "oracle"},
    "field": {"quary": "x"},
    "endless": {
        "query": "WITH RECURSIVE n AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT * FROM n"
    },
}


async def test_tasks_that_are_refused(bench):
    for name, change in REFUSED.items():
        task = Task(id="t", prompt="?", answer={**question(), **change})
        with pytest.raises(TaskError, match="task 't'"):
            Sql(cpu_s=0.3).check_gold(task)
        with pytest.raises(TaskError, match="task 't'"):
            await bench.judge(Sql(cpu_s=0.3), GOLD, task=task)
        assert name


async def test_what_a_task_may_declare(bench):
    one = question(single_database=True, databases=[{"setup": FIRST}])
    assert (await bench.judge(Sql(), GOLD, one)).passed
    same = question(query="SELECT name FROM people WHERE name = 'ada'", same_results=True)
    assert (await bench.judge(Sql(), "SELECT 'ada'", same)).passed
    empty = question(query="SELECT name FROM people WHERE age = 20", allow_empty=True)
    assert (await bench.judge(Sql(), empty["query"], empty)).passed


async def test_a_good_task_is_checked_once(bench):
    verifier, task = Sql(), Task(id="t", prompt="?", answer=question())
    verifier.check_gold(task)
    verifier.check_gold(task)
    assert len(verifier._golds) == 1
    assert (await bench.judge(verifier, GOLD, task=task)).passed


def rows(*cells):
    return ResultSet((), cells)


def test_multisets_with_floats():
    one = rows((1.0, "a"), (1.0000000001, "a"), (2.0, None))
    assert not difference(one, rows((2.0, None), (1.0000000001, "a"), (1.0, "a")))
    assert difference(one, rows((2.0, None), (2.0, None), (1.0, "a")))
    assert difference(rows((float("nan"),)), rows((float("nan"),)))
    assert difference(rows((True,)), rows((1,)))
    assert difference(rows(("1",)), rows((1,)))
    assert not difference(rows((10**30,)), rows((10**30,)))
    assert difference(rows((10**30,)), rows((10**30 + 1,)))
    # Pairing by order would fail here: each of two columns is a little off.
    left = rows((0.0, 1.0), (0.1, 0.0))
    assert not difference(left, rows((0.15, 0.0), (0.05, 1.0)), absolute=0.2)


def test_many_rows():
    many = rows(*((n / 7, n % 3, str(n % 5)) for n in range(5000)))
    turned = ResultSet((), tuple(reversed(many.rows)))
    assert not difference(many, turned)
    assert difference(many, ResultSet((), (*turned.rows[1:], (0.5, 0, "0"))))


def test_where_the_query_is():
    assert written_query("```sql\nSELECT 1\n```\n```\nSELECT 2\n```") == "SELECT 1"
    assert written_query("```\nSELECT 2\n```") == "SELECT 2"
    assert written_query("```python\nx\n```\nSELECT 3").endswith("SELECT 3")


def test_the_runner_tells_its_stage():
    job = {"engine": "sqlite", "setup": "CREATE", "query": "SELECT 1", "cpu_s": 1, "max_rows": 5,
           "max_bytes": 1000, "walls": False}  # fmt: skip
    assert run(job)["stage"] == "setup"
    assert run({**job, "setup": "", "query": "SELECT"})["stage"] == "query"
    assert run({**job, "setup": ""}) == {"columns": ["1"], "rows": [[{"i": "1"}]]}


def test_what_is_refused():
    with pytest.raises(ConfigError):
        Sql(cpu_s=0)
