"""The calls of the face work in a notebook's cell, where an event loop runs already."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel (extra dev)")
nbformat = pytest.importorskip("nbformat")

CELLS = [
    """
    import asyncio
    import quintain as q

    assert asyncio.get_event_loop().is_running(), "a notebook's loop runs"
    env = q.Environment(
        tasks=[{"id": f"t{n}", "prompt": f"{n} + 3 = ?", "answer": str(n + 3), "split": "eval"}
               for n in range(10)],
        verifier=lambda text, answer: text.strip() == answer,
    )
    """,
    """
    run = q.evaluate(env, q.scripted("5"), samples=2)
    print(run.pass_at(1).value, run.outcomes)
    """,
    """
    trajectory = q.rollout(env, q.scripted("5"), "t2")
    print(trajectory.outcome)
    """,
    """
    awaited = await q.aevaluate(env, q.scripted("5"))
    print(len(awaited.failures))
    """,
]


def test_evaluate_and_rollout_in_cells(tmp_path, monkeypatch) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell).strip()) for cell in CELLS],
        metadata={"kernelspec": {"name": "python3", "display_name": "python3"}},
    )
    # The kernel of this very interpreter, whatever kernels are registered on the machine.
    kernels = tmp_path / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "python3", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    printed = [
        "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for cell in notebook.cells
    ]
    assert "0.1 {solved: 2, failed: 18" in printed[1]
    assert printed[2].splitlines()[-1] == "solved"
    assert printed[3].splitlines()[-1] == "9"
