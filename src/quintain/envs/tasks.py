"""Where tasks come from: lists, generators, JSONL, Parquet, `datasets`; and seeded makers.

Fields are mapped by name or by a function of the row::

    tasks.jsonl("rows.jsonl", prompt="question", answer="expected")
    tasks.rows(rows, prompt=lambda row: f"Add {row['a']} and {row['b']}", answer="sum")

A row without an id gets one from a hash of its prompt and answer. A row without a split gets one
from a stable hash of its id, or of its prompt when it has no id (80/10/10), so that a row never
changes sides when others are added.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quintain import registry
from quintain.dialects.openai_chat import decode_messages
from quintain.errors import ConfigError, RegistryError, TaskError
from quintain.messages import Message, as_messages
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

    Task n is `make(random.Random(seed of n), n)`. Its split follows from a hash of its content, so
    equal tasks fall on one side whatever their numbers; repetitions within a pass are left out.

    Args:
        make: a task's fields (`prompt`, `answer`, …) from a random generator and a number; the
            field `content` (any JSON) says what makes two tasks the same, by default the prompt;
            a field that is costly may be a function without arguments, called for kept tasks only
            (the prompt, where `content` is given).
        name: prefix of the ids.
        seed: of the whole source.
        eval: how many tasks the eval split has.
        heldout: how many tasks the held-out split has.
        train: how many the train split has; None: as many as there are different ones.
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
        for split, size in self._sizes.items():
            if size is not None and size < 0:
                raise ConfigError(f"the size of the {split} split is at least 0, got {size}")

    def _fields(self, number: int) -> tuple[dict[str, Any], str]:
        """What task `number` is made of, and the hash of its content."""
        fields = self._make(self._generator(number), number)
        content = fields.pop("content", None)
        if content is None:
            fields["prompt"] = as_messages(fields["prompt"])
            content = [message.model_dump(mode="json") for message in fields["prompt"]]
        return fields, digest("content", content)

    def _task(self, number: int, fields: dict[str, Any], content: str) -> Task:
        values = {name: value() if callable(value) else value for name, value in fields.items()}
        values["prompt"] = as_messages(values["prompt"])
        values |= {"id": f"{self._name}-{number}", "split": split_of(content)}
        return _build(values, f"task {number} of {self._name}")

    def _generator(self, number: int) -> random.Random:
        return random.Random(derive_seed(self._seed, self._name, number))

    def split(self, split: Split) -> Iterator[Task]:
        """The tasks of a split in the order of their numbers.

        Raises:
            TaskError: the generator has fewer different tasks than the split should have.
        """
        size = self._sizes[split]
        seen: set[str] = set()
        number = misses = 0
        while size is None or len(seen) < size:
            fields, content = self._fields(number)
            if split_of(content) == split and content not in seen:
                misses = 0
                seen.add(content)
                yield self._task(number, fields, content)
            elif (misses := misses + 1) > self._GIVE_UP:
                if size is None:
                    return
                raise TaskError(
                    f"{self._name} has only {len(seen)} different tasks in its {split} split, "
                    f"{size} were asked for: ask for fewer, or make its tasks more varied"
                )
            number += 1

    def get(self, task_id: str) -> Task:
        """The task of that id, made again."""
        number = self._number(task_id)
        return self._task(number, *self._fields(number))

    def generator(self, task_id: str) -> random.Random:
        """The random generator that the task of that id was made with, fresh."""
        return self._generator(self._number(task_id))

    def _number(self, task_id: str) -> int:
        prefix, _, number = task_id.rpartition("-")
        if prefix != self._name or not re.fullmatch(r"0|[1-9][0-9]{0,17}", number):
            raise TaskError(
                f"there is no task {task_id!r}; ids here are {self._name}-0, {self._name}-1, …"
            )
        return int(number)


def rows(
    given: Iterable[Mapping[str, Any] | Task],
    *,
    prompt: Field = "prompt",
    answer: Field = "answer",
    where: str = "row",
    **fields: Field,
) -> Tasks:
    """Tasks from rows of any kind; all of them are read, so an endless generator never returns.

    Args:
        given: mappings, or tasks.
        prompt: the column with the prompt: a string, or messages (ours, or in OpenAI's format).
        answer: the column with the gold answer; may be absent from the rows.
        where: what a row is called in errors.
        fields: other columns: `id`, `split`, `files`, `hidden_files`, `world`, `metadata`, …; a
            column of that very name is taken without being mentioned.

    Raises:
        TaskError: naming the row and what is wrong with it.
    """
    places = ((f"{where} {number}", row) for number, row in enumerate(given, start=1))
    return _from_places(places, where, {"prompt": prompt, "answer": answer, **fields})


def _from_places(
    given: Iterable[tuple[str, Any]], where: str, fields: Mapping[str, Field]
) -> Tasks:
    """Tasks from (where a row stands, the row)."""
    unknown = set(fields) - {"prompt", "answer", *_OPTIONAL}
    if unknown:
        raise ConfigError(f"unknown task fields {sorted(unknown)}; known: {', '.join(_OPTIONAL)}")
    mapping: dict[str, Field] = {**{name: name for name in _OPTIONAL}, **fields}
    required = {name for name in fields if name != "answer" or fields["answer"] != "answer"}
    taken: dict[str, int] = {}
    first_place: dict[str, str] = {}
    tasks: list[Task] = []
    for place, row in given:
        task = row if isinstance(row, Task) else _from_row(row, mapping, required, taken, place)
        if task.id in first_place:
            raise TaskError(f"{place}: the id {task.id!r} is taken by {first_place[task.id]}")
        first_place[task.id] = place
        tasks.append(task)
    if not tasks:
        raise TaskError(f"no tasks: there is no {where}")
    return Tasks(tasks)


def _from_row(
    row: Any,
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
                    f"{place}: {name}: {type(error).__name__}: {error} (row has {_columns(row)})"
                ) from error
        elif field in row:
            values[name] = row[field]
        elif name in required:
            raise TaskError(f"{place}: no column {field!r} for {name}; it has {_columns(row)}")
    values["prompt"] = _prompt(values["prompt"], place)
    if values.get("id") is None:
        told = digest(*(message.model_dump_json() for message in values["prompt"]))
        base = digest(told, values.get("answer"))[:16]
        taken[base] = taken.get(base, 0) + 1
        # By the prompt alone: two rows that ask the same must not lie on two sides.
        values["split"] = values.get("split") or split_of(told)
        values["id"] = base if taken[base] == 1 else f"{base}-{taken[base]}"
    values["id"] = str(values["id"])
    return _build({key: value for key, value in values.items() if value is not None}, place)


def _columns(row: Mapping[str, Any]) -> str:
    return ", ".join(str(name) for name in row) or "none"


def _prompt(value: Any, place: str) -> tuple[Message, ...]:
    if isinstance(value, str | Message):
        return as_messages(value)
    if not isinstance(value, list | tuple) or not value:
        raise TaskError(f"{place}: a prompt is a string or a list of messages, got {value!r}")
    try:
        return tuple(Message.model_validate(message) for message in value)
    except ValidationError:
        return _openai_prompt(list(value), place)


def _openai_prompt(value: list[Any], place: str) -> tuple[Message, ...]:
    """Messages that are not written as ours are: OpenAI keeps calls and results elsewhere."""
    try:
        return decode_messages(value)
    except ValueError as error:
        raise TaskError(f"{place}: prompt: {error}") from error


def _build(values: Mapping[str, Any], place: str) -> Task:
    try:
        return Task.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors(include_url=False)
        )
        raise TaskError(f"{place}: {problems}") from error


def jsonl(
    path: str | Path, *, prompt: Field = "prompt", answer: Field = "answer", **fields: Field
) -> Tasks:
    """Tasks from a file of JSON lines, blank lines skipped; see `rows`.

    Raises:
        TaskError: naming the file and the line.
    """
    path = Path(path)

    def refuse(name: str) -> Json:
        raise ValueError(f"{name} is not JSON")

    def lines() -> Iterator[tuple[str, Json]]:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.isspace():
                    continue
                place = f"{path}, line {number}"
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    yield place, json.loads(text, parse_constant=refuse)
                except ValueError as error:
                    raise TaskError(f"{place}: not JSON in UTF-8: {error}") from error

    _must_be_file(path)
    given = {"prompt": prompt, "answer": answer, **fields}
    return _from_places(lines(), f"line in {path}", given)


def parquet(
    path: str | Path, *, prompt: Field = "prompt", answer: Field = "answer", **fields: Field
) -> Tasks:
    """Tasks from a Parquet file (extra `parquet`); see `rows`.

    Raises:
        TaskError: naming the file and the row.
    """
    path = Path(path)
    _must_be_file(path)
    try:
        read_table = registry.load("pyarrow.parquet:read_table")
    except RegistryError as error:
        raise ConfigError(
            "reading Parquet needs pyarrow: pip install 'quintain[parquet]'"
        ) from error
    try:
        table = read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: not a Parquet file: {error}") from error
    return rows(table, prompt=prompt, answer=answer, where=f"{path}, row", **fields)


def _must_be_file(path: Path) -> None:
    if not path.is_file():
        raise TaskError(f"{path}: {'not a file' if path.exists() else 'no such file'}")


def dataset(
    data: Iterable[Mapping[str, Any]],
    *,
    prompt: Field = "prompt",
    answer: Field = "answer",
    **fields: Field,
) -> Tasks:
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
