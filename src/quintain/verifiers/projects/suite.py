"""What a task declares of its project.

`Task.answer` is `{"project": {…}}`. `Task.files` is the state of the repository that the candidate
began with, `Task.hidden_files` what it never sees: hidden tests and their configuration. Paths are
relative to the workdir of the sandbox.
"""

from __future__ import annotations

import posixpath
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from quintain.errors import TaskError
from quintain.record import Record
from quintain.task import Task
from quintain.verifiers.projects.interface import BadInterface, parse_interface
from quintain.verifiers.projects.sources import Patterns, check_path

Form = Literal["apart", "together"]


class Project(Record):
    """A project and the tests that judge it."""

    source: tuple[str, ...] = Field(min_length=1)
    """The only files that are taken of the candidate: paths or patterns (`*`, `?`, and `**` for
    any number of folders). What configures or hooks into tests and interpreter is never taken."""
    tests: tuple[str, ...] = Field(min_length=1)
    """Files of tests, among `hidden_files` or `files`."""
    expected: tuple[str, ...] = Field(min_length=1)
    """Ids of the tests, as pytest writes them: exactly these must run, once each, and pass."""
    form: Form = "apart"
    """`apart`: the candidate's code runs in another sandbox than the tests, which hold stubs of it.
    `together`: in one process; for tests that need it, and weaker: see the documentation."""
    interface: dict[str, str] = Field(default_factory=dict)
    """Module to its stub, as type checkers read them. `apart` needs it: only what it declares can
    be used by the tests. For `together` it is optional: what declared functions return is then
    rebuilt as plain data."""
    config: str | None = None
    """The file that configures pytest, among `hidden_files` or `files`; None: nothing does."""
    paths: tuple[str, ...] = (".",)
    """Folders to import from."""
    plugins: tuple[str, ...] = ()
    """Plug-ins of pytest to load by module name; the sandbox's image has them."""

    _table: dict[str, Any] = PrivateAttr(default_factory=dict)

    @field_validator("source", "tests", "paths")
    @classmethod
    def _relative(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            check_path(path)
        return value

    @field_validator("expected")
    @classmethod
    def _once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({each for each in value if value.count(each) > 1})
        if twice:
            raise ValueError(f"named twice: {', '.join(twice)}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Project:
        for each in self.expected:
            if each.partition("::")[0] not in self.tests:
                raise ValueError(f"expected {each!r} is in none of the files of tests")
        taken = Patterns(self.source)
        for path in (*self.tests, *([self.config] if self.config else [])):
            if taken.takes(path):
                raise ValueError(f"{path!r} is trusted, but 'source' takes it from the candidate")
        if self.form == "apart" and not self.interface:
            raise ValueError("form 'apart' needs an interface: a stub of each module")
        try:
            self._table = parse_interface(self.interface)
        except BadInterface as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def table(self) -> dict[str, Any]:
        """The interface, parsed."""
        return self._table

    @classmethod
    def of(cls, task: Task) -> Project:
        """The project in a task's answer.

        Raises:
            TaskError: a part of it is wrong, or a file that it names is not there.
        """
        answer = task.answer
        if not (isinstance(answer, dict) and isinstance(answer.get("project"), dict)):
            raise TaskError(f"task {task.id!r}: expected an answer {{'project': {{…}}}}")
        try:
            made = cls.model_validate(answer["project"])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise TaskError(f"task {task.id!r}: project {where}: {first['msg']}") from error
        trusted = {posixpath.normpath(path) for path in (*task.files, *task.hidden_files)}
        for path in (*made.tests, *([made.config] if made.config else [])):
            known = posixpath.normpath(path) in trusted
            has_image = task.sandbox is not None and task.sandbox.image is not None
            if not known and not has_image:
                raise TaskError(f"task {task.id!r}: {path} is in neither hidden_files nor files")
        return made


def is_project(task: Task) -> bool:
    """Whether a task's answer declares a project."""
    return isinstance(task.answer, dict) and "project" in task.answer
