"""Where tasks come from: lists, generators, JSONL, Parquet, `datasets`; and seeded makers.

Fields are mapped by name or by a function of the row::

    tasks.jsonl("rows.jsonl", prompt="question", answer="expected")
    tasks.rows(rows, prompt=lambda row: f"Add {row['a']} and {row['b']}", answer="sum")

A row without an id gets one from a hash of its prompt and answer; a row without a split gets one
from a stable hash of its id (80/10/10), so that a row never changes sides when others are added.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quintain import registry
from quintain.errors import ConfigError, RegistryError, TaskError
from quintain.messages import as_messages
from quintain.protocols import TaskSource
from quintain.record import Json, derive_seed, digest
from quintain.task import Split, Task, split_of

Field = str | Callable[[Mapping[str, Any]], Any]
"""A column's name, or a function of the row."""

_OPTIONAL = (
    "id", "split", "files", "hidden_files", "world", "metadata", "source", "license", "created",
    "sandbox", "limits",
)  # fmt: skip


class Tasks:
    """A fixed list of tasks, by split and by id."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._by_id: dict[str, Task] = {}
        for task in tasks:
            if task.id in self._by_id:
                raise TaskError(f"two tasks have the id {task.id!r}")
            self._by_id[task.id] = task
        if not self._by_id:
            raise TaskError("there are no tasks")

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._by_id.values())

    def split(self, split: Split) -> Iterator[Task]:
        """The tasks of a split, in the order given."""
        return (task for task in self._by_id.values() if task.split == split)

    def get(self, task_id: str) -> Task:
        """The task of that id."""
        try:
            return self._by_id[task_id]
        except KeyError as error:
            raise TaskError(f"there is no task {task_id!r} among {len(self)}") from error


class Generated:
    """Tasks made from a seed, one a number; the splits are disjoint in content.

    Task n is `make(random.Random(seed of n), n)`. Its split follows from a hash of its prompt, so
    equal tasks fall on one side whatever their numbers; repetitions within a pass are left out.

    Args:
        make: a task's fields (`prompt`, `answer`, …) from a random generator and a number.
        name: prefix of the ids.
        seed: of the whole source.
        eval: how many tasks the eval split has.
        heldout: how many tasks the held-out split has.
        train: how many the train split has; None: endless.
    """

    _GIVE_UP = 20_000
    """Numbers without a new task after which the content counts as exhausted."""

    def __init__(
        self,
        make: Callable[[random.Random, int], dict[str, Any]],
        *,
        name: str,
        seed: int = 0,
        eval: int = 200,
        heldout: int = 200,
        train: int | None = None,
    ) -> None:
        self._make = make
        self._name = name
        self._seed = seed
        self._sizes = {Split.TRAIN: train, Split.EVAL: eval, Split.HELDOUT: heldout}

    def _task(self, number: int) -> tuple[Task, str]:
        fields = self._make(random.Random(derive_seed(self._seed, self._name, number)), number)
        messages = as_messages(fields["prompt"])
        content = digest(*(message.model_dump_json() for message in messages))
        return (
            _build(
                {
                    **fields,
                    "id": f"{self._name}-{number}",
                    "prompt": messages,
                    "split": split_of(content),
                },
                f"task {number} of {self._name}",
            ),
            content,
        )

    def split(self, split: Split) -> Iterator[Task]:
        """The tasks of a split in the order of their numbers; endless where no size is set."""
        size = self._sizes[split]
        seen: set[str] = set()
        number = misses = 0
        while size is None or len(seen) < size:
            task, content = self._task(number)
            number += 1
            if task.split != split or content in seen:
                misses += 1
                if misses > self._GIVE_UP:
                    return
                continue
            misses = 0
            seen.add(content)
            yield task

    def get(self, task_id: str) -> Task:
        """The task of that id, made again."""
        prefix, _, number = task_id.rpartition("-")
        if prefix != self._name or not number.isdecimal():
            raise TaskError(
                f"there is no task {task_id!r}; ids here are {self._name}-0, {self._name}-1, …"
            )
        return self._task(int(number))[0]


def rows(
    given: Iterable[Mapping[str, Any] | Task],
    *,
    prompt: Field = "prompt",
    answer: Field = "answer",
    where: str = "row",
    **fields: Field,
) -> Tasks:
    """Tasks from rows of any kind.

    Args:
        given: mappings, or tasks.
        prompt: the column with the prompt: a string, or OpenAI-style messages.
        answer: the column with the gold answer; may be absent from the rows.
        where: what a row is called in errors.
        fields: other columns: `id`, `split`, `files`, `hidden_files`, `world`, `metadata`, …; a
            column of that very name is taken without being mentioned.

    Raises:
        TaskError: naming the row and what is wrong with it.
    """
    unknown = set(fields) - set(_OPTIONAL)
    if unknown:
        raise ConfigError(f"unknown task fields {sorted(unknown)}; known: {', '.join(_OPTIONAL)}")
    mapping: dict[str, Field] = {name: name for name in _OPTIONAL}
    mapping.update({"answer": answer, **fields})
    required = {"prompt", *fields} | ({"answer"} if answer != "answer" else set())
    mapping["prompt"] = prompt
    tasks: list[Task] = []
    taken: dict[str, int] = {}
    for number, row in enumerate(given, start=1):
        place = f"{where} {number}"
        if isinstance(row, Task):
            tasks.append(row)
            continue
        tasks.append(_from_row(row, mapping, required, taken, place))
    if not tasks:
        raise TaskError(f"no tasks: there is no {where}")
    return Tasks(tasks)


def _from_row(
    row: Mapping[str, Any],
    mapping: Mapping[str, Field],
    required: set[str],
    taken: dict[str, int],
    place: str,
) -> Task:
    if not isinstance(row, Mapping):
        raise TaskError(f"{place}: expected a mapping or a Task, got {type(row).__name__}")
    values: dict[str, Any] = {}
    for name, field in mapping.items():
        if callable(field):
            try:
                values[name] = field(row)
            except Exception as error:
                raise TaskError(
                    f"{place}: {name}: {type(error).__name__}: {error} (row has {sorted(row)})"
                ) from error
        elif field in row:
            values[name] = row[field]
        elif name in required:
            raise TaskError(f"{place}: no column {field!r} for {name}; it has {sorted(row)}")
    values["prompt"] = _prompt(values["prompt"], place)
    if values.get("id") is None:
        base = digest(*(m.model_dump_json() for m in values["prompt"]), values.get("answer"))[:16]
        taken[base] = taken.get(base, 0) + 1
        # Equal rows stay on one side of the splits: they are told apart after it is chosen.
        values.setdefault("split", None)
        values["split"] = values["split"] or split_of(base)
        values["id"] = base if taken[base] == 1 else f"{base}-{taken[base]}"
    values["id"] = str(values["id"])
    return _build({key: value for key, value in values.items() if value is not None}, place)


def _prompt(value: Any, place: str) -> Any:
    if isinstance(value, str):
        return as_messages(value)
    if isinstance(value, list | tuple) and value:
        return tuple(value)
    raise TaskError(f"{place}: a prompt is a string or a list of messages, got {value!r}")


def _build(values: Mapping[str, Any], place: str) -> Task:
    try:
        return Task.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors(include_url=False)
        )
        raise TaskError(f"{place}: {problems}") from error


def jsonl(path: str | Path, *, prompt: Field = "prompt", answer: Field = "answer",
          **fields: Field) -> Tasks:  # fmt: skip
    """Tasks from a file of JSON lines; see `rows`.

    Raises:
        TaskError: naming the file and the line.
    """
    path = Path(path)

    def lines() -> Iterator[Json]:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    raise TaskError(f"{path}, line {number}: the line is empty")
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise TaskError(f"{path}, line {number}: not JSON: {error}") from error

    if not path.exists():
        raise TaskError(f"{path}: no such file")
    return rows(lines(), prompt=prompt, answer=answer, where=f"{path}, line", **fields)


def parquet(path: str | Path, *, prompt: Field = "prompt", answer: Field = "answer",
            **fields: Field) -> Tasks:  # fmt: skip
    """Tasks from a Parquet file (extra `parquet`); see `rows`."""
    path = Path(path)
    if not path.exists():
        raise TaskError(f"{path}: no such file")
    try:
        read_table = registry.load("pyarrow.parquet:read_table")
    except RegistryError as error:
        raise ConfigError(
            "reading Parquet needs pyarrow: pip install 'quintain[parquet]'"
        ) from error
    return rows(
        read_table(path).to_pylist(), prompt=prompt, answer=answer, where=f"{path}, row", **fields
    )


def dataset(data: Iterable[Mapping[str, Any]], *, prompt: Field = "prompt",
            answer: Field = "answer", **fields: Field) -> Tasks:  # fmt: skip
    """Tasks from a loaded `datasets.Dataset` (or anything that yields its rows); see `rows`."""
    return rows(data, prompt=prompt, answer=answer, where="dataset row", **fields)


def as_source(tasks: TaskSource | Iterable[Task | Mapping[str, Any]]) -> TaskSource:
    """A source as it is; an iterable as a list of tasks."""
    if isinstance(tasks, TaskSource) and not isinstance(tasks, str):
        return tasks
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
        raise ConfigError(
            "tasks is a TaskSource or an iterable of tasks or rows; for a file use "
            f"quintain.tasks.jsonl(path), got {tasks!r}"
        )
    return rows(tasks)
