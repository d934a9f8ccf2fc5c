"""Task sources: every kind of rows, and what is said of bad ones."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quintain as q
from quintain.envs.tasks import Generated, Tasks, as_source
from quintain.errors import ConfigError, TaskError
from quintain.protocols import TaskSource
from quintain.task import Split, Task


def write_lines(path, *lines):
    path.write_bytes(b"".join(x if isinstance(x, bytes) else f"{x}\n".encode() for x in lines))
    return path


# --- rows ---------------------------------------------------------------------------------------


def test_rows_map_columns_by_name_and_by_function():
    tasks = list(
        q.tasks.rows(
            [{"a": 2, "b": 3, "sum": 5, "key": 7, "note": "x"}],
            prompt=lambda row: f"Add {row['a']} and {row['b']}",
            answer="sum",
            id="key",
            metadata=lambda row: {"note": row["note"]},
        )
    )
    assert len(tasks) == 1
    assert tasks[0].prompt[0].text == "Add 2 and 3"
    assert tasks[0].answer == 5
    assert tasks[0].id == "7"
    assert tasks[0].metadata == {"note": "x"}


def test_columns_of_a_fields_name_are_taken_without_being_mentioned():
    row = {
        "prompt": "p",
        "answer": "a",
        "id": "i",
        "split": "eval",
        "files": {"x.txt": "text"},
        "hidden_files": {"h.txt": "text"},
        "world": {"mood": "bad"},
        "source": "s",
        "license": "MIT",
        "created": "2024-05-01",
        "limits": {"max_steps": 3},
        "sandbox": {"memory_mb": 64},
    }
    (task,) = q.tasks.rows([row])
    assert task.files == {"x.txt": b"text"}
    assert task.hidden_files == {"h.txt": b"text"}
    assert task.world == {"mood": "bad"}
    assert (task.split, task.source, task.license) == ("eval", "s", "MIT")
    assert str(task.created) == "2024-05-01"
    assert task.limits.max_steps == 3
    assert task.sandbox.memory_mb == 64


def test_tasks_and_rows_may_be_mixed():
    made = Task(id="t", prompt="made", split="train")
    assert [t.id for t in q.tasks.rows([made, {"prompt": "p", "id": "r"}])] == ["t", "r"]


def test_an_answer_may_be_absent_unless_its_column_is_named():
    (task,) = q.tasks.rows([{"prompt": "p"}])
    assert task.answer is None
    with pytest.raises(TaskError, match=r"row 1: no column 'gold' for answer; it has prompt"):
        q.tasks.rows([{"prompt": "p"}], answer="gold")


@pytest.mark.parametrize(
    ("row", "fields", "message"),
    [
        ({"question": "p"}, {}, "row 2: no column 'prompt' for prompt; it has question"),
        ({"prompt": "p"}, {"id": "key"}, "row 2: no column 'key' for id"),
        ({"prompt": 5}, {}, "row 2: a prompt is a string or a list of messages, got 5"),
        ({"prompt": []}, {}, "row 2: a prompt is a string or a list of messages"),
        ({"prompt": "p", "split": "test"}, {}, "row 2: split: .*'train', 'eval' or 'heldout'"),
        ({"prompt": "p", "files": "x"}, {}, "row 2: files: .*dict"),
        ({"prompt": "p", "limits": {"max_step": 1}}, {}, "row 2: limits.max_step: "),
        ("text", {}, "row 2: expected a mapping or a Task, got str"),
        ({"n": 1}, {"prompt": lambda row: row["m"]}, "row 2: prompt: KeyError: 'm' .row has n"),
    ],
)
def test_a_bad_row_is_named_with_what_is_wrong(row, fields, message):
    good = {"prompt": "fine", "question": "q", "key": "k", "n": 1, "m": "fine"}
    with pytest.raises(TaskError, match=message):
        q.tasks.rows([good, row], **fields)


def test_an_unknown_field_is_refused():
    with pytest.raises(ConfigError, match=r"unknown task fields \['golds'\]; known: id, split"):
        q.tasks.rows([{"prompt": "p"}], golds="answer")


def test_no_rows_is_an_error():
    with pytest.raises(TaskError, match="no tasks: there is no row"):
        q.tasks.rows([])


def test_a_taken_id_names_both_rows():
    rows = [{"prompt": "a", "id": "x"}, {"prompt": "b"}, {"prompt": "c", "id": "x"}]
    with pytest.raises(TaskError, match=r"row 3: the id 'x' is taken by row 1"):
        q.tasks.rows(rows)


def test_messages_in_openais_format_become_messages():
    prompt = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    (task,) = q.tasks.rows([{"prompt": prompt}])
    assert [m.role for m in task.prompt] == ["system", "user", "assistant", "tool"]
    assert task.prompt[2].tool_calls[0].arguments == {"city": "Bern"}
    assert task.prompt[3].tool_results[0].text == "sunny"


def test_a_message_that_nobody_speaks_is_named():
    with pytest.raises(TaskError, match=r"row 1: prompt: messages\[0\].role: 'narrator'"):
        q.tasks.rows([{"prompt": [{"role": "narrator", "content": "x"}]}])


# --- ids and splits -----------------------------------------------------------------------------


def test_splits_are_80_10_10_and_stable():
    tasks = list(q.tasks.rows({"prompt": f"q{n}", "id": n} for n in range(4000)))
    counts = Counter(task.split for task in tasks)
    assert abs(counts["train"] / 4000 - 0.8) < 0.03
    assert abs(counts["eval"] / 4000 - 0.1) < 0.02
    assert abs(counts["heldout"] / 4000 - 0.1) < 0.02
    # Frozen: a row must never change sides, in any later version.
    elsewhere = {t.id: t.split.value for t in tasks[:20] if t.split != "train"}
    assert elsewhere == FROZEN


FROZEN = {
    "2": "eval",
    "7": "eval",
    "13": "heldout",
    "14": "heldout",
    "16": "eval",
    "17": "heldout",
}


def test_rows_do_not_change_sides_when_others_are_added():
    few = {
        t.prompt[0].text: (t.id, t.split)
        for t in q.tasks.rows({"prompt": f"q{n}"} for n in range(50))
    }
    many = q.tasks.rows({"prompt": f"q{n}"} for n in reversed(range(200)))
    assert few.items() <= {t.prompt[0].text: (t.id, t.split) for t in many}.items()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_equal_prompts_lie_on_one_side_and_ids_differ(pairs):
    tasks = list(q.tasks.rows({"prompt": p, "answer": a} for p, a in pairs))
    assert len({t.id for t in tasks}) == len(pairs)
    sides = {}
    for task in tasks:
        assert sides.setdefault(task.prompt[0].text, task.split) == task.split


def test_tasks_are_found_by_split_and_by_id():
    tasks = Tasks(Task(id=str(n), prompt="p", split="eval" if n % 2 else "train") for n in range(6))
    assert [t.id for t in tasks.split(Split.EVAL)] == ["1", "3", "5"]
    assert list(tasks.split(Split.HELDOUT)) == []
    assert tasks.get("3").id == "3"
    with pytest.raises(TaskError, match="there is no task '9' among 6"):
        tasks.get("9")


# --- files --------------------------------------------------------------------------------------


def test_jsonl_reads_rows_and_skips_blank_lines(tmp_path):
    path = write_lines(
        tmp_path / "rows.jsonl",
        b"\xef\xbb\xbf" + '{"question": "Größe?", "gold": 1}\n'.encode(),
        "",
        '{"question": "second", "gold": {"a": [1]}}',
        "   ",
    )
    tasks = list(q.tasks.jsonl(path, prompt="question", answer="gold"))
    assert [t.prompt[0].text for t in tasks] == ["Größe?", "second"]
    assert tasks[1].answer == {"a": [1]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "p"', "not JSON in UTF-8: Expecting"),
        ('{"prompt": "p"} trailing', "not JSON in UTF-8: Extra data"),
        ('{"prompt": "p", "answer": NaN}', "not JSON in UTF-8: NaN is not JSON"),
        (b'{"prompt": "\xff"}\n', "not JSON in UTF-8: .*0xff"),
        ('["p", "a"]', "expected a mapping or a Task, got list"),
        ('{"promt": "p"}', "no column 'prompt' for prompt; it has promt"),
        ('{"prompt": "p", "split": "dev"}', "split: "),
        ('{"prompt": "x", "id": "first"}', "the id 'first' is taken by .*line 1"),
    ],
)
def test_a_bad_line_is_named_with_file_and_number(tmp_path, line, message):
    path = write_lines(tmp_path / "rows.jsonl", '{"prompt": "p", "id": "first"}', "", line)
    with pytest.raises(TaskError, match=rf"rows\.jsonl, line 3: {message}"):
        q.tasks.jsonl(path)


def test_jsonl_names_a_file_that_is_missing_empty_or_no_file(tmp_path):
    with pytest.raises(TaskError, match=r"none\.jsonl: no such file"):
        q.tasks.jsonl(tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="not a file"):
        q.tasks.jsonl(tmp_path)
    with pytest.raises(TaskError, match=r"no tasks: there is no line in .*empty\.jsonl"):
        q.tasks.jsonl(write_lines(tmp_path / "empty.jsonl"))


def test_parquet_reads_rows(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    table = pa.table({"q": ["a", "b"], "gold": [1, 2], "extra": [[1, 2], [3]]})
    parquet.write_table(table, path)
    tasks = list(
        q.tasks.parquet(path, prompt="q", answer="gold", metadata=lambda r: {"e": r["extra"]})
    )
    assert [(t.prompt[0].text, t.answer, t.metadata) for t in tasks] == [
        ("a", 1, {"e": [1, 2]}),
        ("b", 2, {"e": [3]}),
    ]
    with pytest.raises(TaskError, match=r"rows\.parquet, row 1: no column 'prompt'"):
        q.tasks.parquet(path)


def test_parquet_names_a_file_that_is_none(tmp_path):
    pytest.importorskip("pyarrow")
    path = write_lines(tmp_path / "rows.parquet", json.dumps({"prompt": "p"}))
    with pytest.raises(TaskError, match=r"rows\.parquet: not a Parquet file"):
        q.tasks.parquet(path)
    with pytest.raises(TaskError, match="no such file"):
        q.tasks.parquet(tmp_path / "none.parquet")


def test_datasets_are_read_row_by_row():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"question": ["a", "b"], "answer": ["1", "2"]})
    tasks = list(q.tasks.dataset(data, prompt="question"))
    assert [(t.prompt[0].text, t.answer) for t in tasks] == [("a", "1"), ("b", "2")]
    with pytest.raises(TaskError, match="dataset row 1: expected a mapping or a Task, got str"):
        q.tasks.dataset(datasets.DatasetDict({"train": data}))


# --- as_source ----------------------------------------------------------------------------------


def test_lists_and_generators_become_sources():
    for given_tasks in ([{"prompt": "p"}], ({"prompt": f"p{n}"} for n in range(3))):
        assert isinstance(as_source(given_tasks), TaskSource)
    source = q.tasks.rows([{"prompt": "p"}])
    assert as_source(source) is source


@pytest.mark.parametrize("wrong", ["rows.jsonl", b"rows", {"prompt": "p"}, 5, None])
def test_what_is_no_source_is_refused_with_advice(wrong):
    with pytest.raises(ConfigError, match=r"for a file use quintain\.tasks\.jsonl"):
        as_source(wrong)


# --- generated ----------------------------------------------------------------------------------


def double(rng, number):
    n = rng.randint(0, 9999)
    return {"prompt": f"Double {n}", "answer": 2 * n}


def content(tasks):
    return [(t.id, t.prompt, t.answer) for t in tasks]


def test_generated_splits_have_their_sizes_and_share_nothing():
    source = Generated(double, name="double", eval=60, heldout=50, train=300)
    splits = {split: list(source.split(split)) for split in Split}
    assert {split: len(tasks) for split, tasks in splits.items()} == {
        "train": 300,
        "eval": 60,
        "heldout": 50,
    }
    prompts = [t.prompt[0].text for tasks in splits.values() for t in tasks]
    assert len(set(prompts)) == len(prompts)
    assert all(t.split == split for split, tasks in splits.items() for t in tasks)


def test_generated_tasks_are_the_same_for_equal_seeds_only():
    first, again, other = (Generated(double, name="d", seed=s, eval=20) for s in (1, 1, 2))
    assert content(first.split(Split.EVAL)) == content(again.split(Split.EVAL))
    assert content(first.split(Split.EVAL)) == content(first.split(Split.EVAL))
    assert content(first.split(Split.EVAL)) != content(other.split(Split.EVAL))


def test_splits_of_different_seeds_share_nothing_either():
    train = {t.prompt for t in Generated(double, name="d", seed=1, train=500).split(Split.TRAIN)}
    heldout = {t.prompt for t in Generated(double, name="d", seed=2).split(Split.HELDOUT)}
    assert not train & heldout


def test_the_train_split_goes_on_as_long_as_it_is_read():
    train = Generated(double, name="double").split(Split.TRAIN)
    assert len({next(train).id for _ in range(1000)}) == 1000


def test_generated_tasks_are_made_again_by_id():
    source = Generated(double, name="my-double", eval=5)
    for task in source.split(Split.EVAL):
        assert source.get(task.id) == task
        assert source.generator(task.id).randint(0, 9999) * 2 == task.answer


@pytest.mark.parametrize(
    "wrong", ["double-01", "double--1", "double-x", "other-3", "3", "double-²"]
)
def test_an_id_that_was_never_given_is_refused(wrong):
    with pytest.raises(TaskError, match="there is no task"):
        Generated(double, name="double").get(wrong)


def test_content_decides_what_is_the_same():
    def pair(rng, number):
        a, b = rng.randint(0, 30), rng.randint(0, 30)
        return {"prompt": f"{a}+{b}", "answer": a + b, "content": sorted((a, b))}

    source = Generated(pair, name="pair", eval=20, heldout=20, train=200)
    seen = [
        tuple(sorted(t.prompt[0].text.split("+"))) for split in Split for t in source.split(split)
    ]
    assert len(set(seen)) == len(seen)


def test_costly_fields_are_computed_for_kept_tasks_only():
    computed = []

    def costly(rng, number):
        return {"prompt": f"p{number}", "answer": lambda: computed.append(number) or number}

    tasks = list(Generated(costly, name="c", eval=5).split(Split.EVAL))
    assert [t.answer for t in tasks] == computed
    assert len(computed) == 5


def test_a_split_that_cannot_be_filled_is_an_error(monkeypatch):
    monkeypatch.setattr(Generated, "_GIVE_UP", 500)
    source = Generated(lambda rng, n: {"prompt": str(rng.randint(0, 30))}, name="few", eval=20)
    with pytest.raises(TaskError, match=r"few has only \d+ different tasks in its eval split, 20"):
        list(source.split(Split.EVAL))
    assert len({t.prompt for t in source.split(Split.TRAIN)}) > 10


def test_a_bad_generated_task_is_named():
    source = Generated(lambda rng, n: {"prompt": "p", "awnser": 1}, name="bad")
    with pytest.raises(TaskError, match=r"task \d+ of bad: awnser: Extra inputs"):
        next(source.split(Split.TRAIN))
    with pytest.raises(ConfigError, match="size of the eval split is at least 0"):
        Generated(double, name="d", eval=-1)
