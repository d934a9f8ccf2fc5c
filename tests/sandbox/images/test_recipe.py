"""Recipes: keys by content, steps, and the Dockerfile text for engines."""

from __future__ import annotations

import io
import tarfile

import pytest

from quintain.errors import ConfigError
from quintain.sandbox.images.dockerfile import Copy, Folder, Run, parse, read
from quintain.sandbox.images.recipe import Apt, Packages, Recipe
from quintain.task import SandboxSpec

TEXT = """# a comment
ARG BASE=debian
FROM ${BASE}
ENV A=1 B="two words"
ENV C three
WORKDIR /srv/app
RUN echo one \\
    # a comment between
    && echo two
COPY <<EOF run.sh
echo $A
EOF
COPY --chown=bin:bin --chmod=755 <<"EOF" /usr/local/bin/raw
echo $A
EOF
USER bin
RUN ["echo", "three"]
WORKDIR data
CMD sleep 1
"""


def test_equal_specs_have_equal_keys():
    def key(**fields):
        return Recipe.of(SandboxSpec(**fields)).key

    assert key(packages=("a",)) == key(packages=("a", "a"), memory_mb=2048)
    keys = [
        key(packages=("a",)),
        key(apt=("a",)),
        key(setup=("a",)),
        key(packages=("a",), image="x"),
        key(dockerfile="FROM a\n"),
        Recipe.of(SandboxSpec(packages=("a",)), "identity").key,
    ]
    assert len(set(keys)) == len(keys)


def test_a_dockerfile_is_read_as_steps():
    parsed = parse(TEXT)
    assert (parsed.base, parsed.user, parsed.workdir) == ("debian", "bin", "/srv/app/data")
    assert parsed.env == {"A": "1", "B": "two words", "C": "three"}
    folder, run, inline, raw, last, _ = parsed.steps
    assert isinstance(folder, Folder)
    assert isinstance(run, Run)
    assert run.argv[-1].split() == ["echo", "one", "&&", "echo", "two"]
    assert (run.cwd, run.user) == ("/srv/app", "root")
    assert isinstance(inline, Copy)
    assert inline.target == "/srv/app/run.sh"
    assert inline.files == (("EOF", b"echo 1\n"),)
    assert isinstance(raw, Copy)
    assert (raw.owner, raw.mode, raw.files[0][1]) == ("bin:bin", 0o755, b"echo $A\n")
    assert isinstance(last, Run)
    assert (last.argv, last.user, last.label) == (("echo", "three"), "bin",
                                                  'line 17: RUN ["echo", "three"]')  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("RUN true", 1, "FROM"),
        ("FROM a\nFROM b", 2, "stages"),
        ("FROM a AS b", 1, "one base"),
        ("FROM a\n\nADD http://x /y", 3, "ADD"),
        ("FROM a\nRUN --mount=type=cache true", 2, "--mount"),
        ("FROM a\nCOPY --from=b x y", 2, "--from"),
        ("FROM a\nCOPY x", 2, "target"),
        ("FROM a\nCOPY x y z", 2, "/"),
        ("FROM a\nENV A", 2, "ENV"),
        ("FROM a\nRUN <<EOF\ntrue", 2, "EOF"),
        ("FROM a\nRUN [1]", 2, "strings"),
        ("FROM a\nCOPY 'x y", 2, "quotation"),
    ],
)
def test_what_is_not_of_the_subset_is_refused_by_its_line(text, line, what):
    with pytest.raises(ConfigError, match=f"line {line}:.*{what}"):
        parse(text)


def test_no_base_is_refused():
    with pytest.raises(ConfigError, match="no FROM"):
        parse("# nothing\n")
    with pytest.raises(ConfigError, match="named once"):
        Recipe.of(SandboxSpec(image="a", dockerfile="FROM b\n"))
    with pytest.raises(ConfigError, match="path"):
        Recipe.of(SandboxSpec(dockerfile="no/such/file"))


def test_an_engine_gets_a_dockerfile():
    spec = SandboxSpec(apt=("jq",), packages=("numpy<3",), setup=("echo a", "echo b\necho c"))
    text = Recipe.of(spec).dockerfile("debian:12")
    words = [(one.line, one.word) for one in read(text)]
    assert words == [(1, "FROM"), (2, "RUN"), (3, "RUN"), (4, "RUN"), (5, "RUN")]
    assert "'jq'" in text
    assert "'numpy<3'" in text
    assert text.endswith('RUN ["/bin/sh", "-c", "echo b\\necho c"]\n')
    with pytest.raises(ConfigError, match="base"):
        Recipe.of(spec).dockerfile()
    # What is installed on top is installed by root, and the image's user stays.
    text = Recipe.of(SandboxSpec(dockerfile=TEXT, apt=("jq",))).dockerfile()
    assert [one.rest for one in read(text) if one.word == "USER"] == ["bin", "root", "bin"]
    multi = "FROM a AS x\nFROM b\nCOPY --from=x /y /y\n"
    assert Recipe.of(SandboxSpec(dockerfile=multi)).dockerfile() == multi


def test_steps_in_order():
    spec = SandboxSpec(dockerfile="FROM host\nRUN one\n", apt=("a",), packages=("b",), setup=("c",))
    recipe = Recipe.of(spec)
    assert recipe.base is None
    assert [type(step) for step in recipe.steps] == [Run, Apt, Packages, Run]


@pytest.fixture
def context(tmp_path):
    (tmp_path / "src/deep").mkdir(parents=True)
    (tmp_path / "src/a.py").write_text("a")
    (tmp_path / "src/deep/b.py").write_text("b")
    (tmp_path / "notes.txt").write_text("n")
    (tmp_path / "secret").write_text("s")
    (tmp_path / ".dockerignore").write_text("secret\n**/*.pyc\n")
    (tmp_path / "src/deep/b.pyc").write_text("x")
    (tmp_path / "link").symlink_to("notes.txt")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY src /app/\nCOPY *.txt /\n")
    return tmp_path


def test_a_context_is_part_of_the_key(context):
    spec = SandboxSpec(dockerfile=str(context / "Dockerfile"))
    recipe = Recipe.of(spec)
    names = [name for name, _ in recipe.files]
    assert names == [".dockerignore", "Dockerfile", "link", "notes.txt", "src/a.py",
                     "src/deep/b.py"]  # fmt: skip
    copies = [step for step in recipe.steps if isinstance(step, Copy)]
    assert recipe.copied(copies[0]) == [("src/a.py", "/app/a.py"),
                                        ("src/deep/b.py", "/app/deep/b.py")]  # fmt: skip
    assert recipe.copied(copies[1]) == [("notes.txt", "/notes.txt")]
    data = recipe.context()
    assert data == Recipe.of(spec).context()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert sorted(tar.getnames()) == sorted(names)
    (context / "src/a.py").write_text("changed")
    assert Recipe.of(spec).key != recipe.key


@pytest.mark.parametrize("source", ["../x", "src/../../x", "/../x"])
def test_a_copy_never_leaves_its_context(context, source):
    (context / "Dockerfile").write_text(f"FROM scratch\nCOPY {source} /y\n")
    recipe = Recipe.of(SandboxSpec(dockerfile=str(context / "Dockerfile")))
    with pytest.raises(ConfigError, match="leaves the context"):
        recipe.copied(recipe.steps[0])
    inline = Recipe.of(SandboxSpec(dockerfile="FROM scratch\nCOPY x /y\n"))
    with pytest.raises(ConfigError, match="no context"):
        inline.copied(inline.steps[0])
