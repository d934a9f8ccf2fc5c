"""The tiny model, loaded once, and a spec of it whose weights are not the fresh ones."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'train'")
pytest.importorskip("transformers", reason="needs the extra 'train'")

from quintain.messages import ToolSpec  # noqa: E402
from quintain.policies.local.model import load_model  # noqa: E402
from quintain.policies.local.spec import ModelSpec  # noqa: E402

CALC = ToolSpec(
    name="calc",
    parameters={
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
)
MOVE = ToolSpec(
    name="move",
    parameters={
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
        "required": ["x"],
    },
)
SPEC = ModelSpec("tiny", dtype="float32", threads=1, max_context=512)


@pytest.fixture(scope="session")
def model():
    """The tiny model; tests that change its weights load their own."""
    return load_model(SPEC)


@pytest.fixture
def adapted():
    """A tiny model with adapters that change what it computes."""
    found = load_model(ModelSpec("tiny", dtype="float32", threads=1, lora=4, max_context=512))
    stir(found, 1)
    return found


def stir(model, seed, size=0.05):
    """Adds noise to everything trainable."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
