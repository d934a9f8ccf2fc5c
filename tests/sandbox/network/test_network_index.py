"""The preset for pip: hosts from pip's own configuration and the index's own links."""

from __future__ import annotations

import pytest

from loopback import Site
from quintain.errors import ConfigError
from quintain.sandbox.network import index, prepare
from quintain.task import NetworkPolicy

JSON = (
    '{"files": [{"url": "https://files.example.test/a.whl"}, {"url": "../../packages/b.whl"}],'
    ' "name": "pip"}'
)
PAGE = "<a href=\"http://127.0.0.1:1234/x.whl#sha256=1\">x</a> <a href='/y.whl'>y</a>"


@pytest.fixture
def configured(monkeypatch, tmp_path):
    """Sets pip's configuration of this process to what is given."""
    monkeypatch.setattr(index, "_asking", None)

    def configure(**settings):
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in settings.items()]
        (tmp_path / "pip.conf").write_text("\n".join(["[global]", *lines]))
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CERT"):
            monkeypatch.delenv(name, raising=False)

    return configure


def page(text, kind="text/html"):
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n"
    return (head + text).encode()


async def test_hosts_come_from_the_configuration_and_the_links(configured):
    async with Site(answer=page(JSON)) as first, Site(answer=page(PAGE)) as second:
        configured(
            index_url=f"http://user:secret@127.0.0.1:{first.port}/simple",
            extra_index_url=f"http://127.0.0.1:{second.port}/more file:///srv/wheels",
            trusted_host="127.0.0.1",
        )
        found = await prepare(NetworkPolicy(presets=["pip"]))
    assert set(found.private_hosts) == {
        f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}", "files.example.test:443",
        "127.0.0.1:1234",
    }  # fmt: skip
    inside = found.environment
    assert inside["PIP_INDEX_URL"] == f"http://127.0.0.1:{first.port}/simple"
    assert inside["PIP_EXTRA_INDEX_URL"] == f"http://127.0.0.1:{second.port}/more"
    assert inside["PIP_TRUSTED_HOST"] == "127.0.0.1"
    assert "secret" not in str(found)
    assert b"Authorization: Basic" in first.got[0]
    assert first.got[0].startswith(b"GET /simple/pip/ ")


async def test_an_index_that_does_not_answer_is_told(configured):
    async with Site() as gone:
        url = f"http://127.0.0.1:{gone.port}/simple"
    configured(index_url=url)
    with pytest.raises(ConfigError, match="does not answer"):
        await prepare(NetworkPolicy(presets=["pip"]))


async def test_a_folder_is_no_index_for_a_sandbox(configured, tmp_path):
    configured(index_url=tmp_path.as_uri())
    with pytest.raises(ConfigError, match="no http"):
        await prepare(NetworkPolicy(presets=["pip"]))


async def test_without_the_preset_pip_is_not_asked(configured):
    configured(index_url="http://127.0.0.1:1/simple")
    found = await prepare(NetworkPolicy(hosts=["example.org"]))
    assert found.private_hosts == ()
    assert not any(name.startswith("PIP_INDEX") for name in found.environment)
