import subprocess
import sys

import pytest

from quintain.errors import ConfigError
from quintain.policies.local.spec import ModelSpec, best_dtype


def test_the_package_imports_and_builds_policies_without_torch():
    program = (
        "import sys, pickle\n"
        "from quintain.policies.local import Local, ModelSpec, local, smollm2, tiny\n"
        "policy = tiny(lora=4)\n"
        "assert pickle.loads(pickle.dumps(policy.spec)) == policy.spec\n"
        "assert smollm2().name == 'smollm2' and policy.version == 0\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.split() == ["False", "False"], run.stderr


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"lora": 0}, "lora"), ({"dtype": "int8"}, "dtype"), ({"threads": 0}, "threads")],
)
def test_wrong_settings_are_named(fields, named):
    with pytest.raises(ConfigError, match=named):
        ModelSpec("tiny", **fields)


def test_adapters_scale_by_alpha_over_rank():
    assert ModelSpec("tiny", lora=8).lora_scale == 2.0
    assert ModelSpec("tiny", lora=8, lora_alpha=4.0).lora_scale == 0.5


def test_accelerators_compute_in_bfloat16():
    assert best_dtype("cuda") == "bfloat16"
    assert best_dtype("cpu") in ("float32", "bfloat16")
