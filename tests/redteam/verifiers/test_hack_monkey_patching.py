"""Whatever the code patches is patched in its own process, where nothing is decided."""

from judging import DOUBLE, SQUARE, all_of, outcomes

PATCHES = {
    "builtins": "import builtins\nfor name in ('all', 'any', 'zip', 'len', 'isinstance', 'type'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)",
    "json": "import json\njson.dumps = json.loads = lambda *a, **k: True\n"
    "json.JSONEncoder.encode = lambda *a: '81'",
    "modules": "import sys\nfor m in list(sys.modules.values()):\n"
    "    for k, v in list(vars(m).items()):\n"
    "        if callable(v) and getattr(v, '__module__', '') == '__main__':\n"
    "            try: setattr(m, k, lambda *a, **k: True)\n"
    "            except Exception: pass",
    "settrace": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)",
    "caller": "import sys\nframe = sys._getframe()\nwhile frame:\n"
    "    frame.f_globals.update(ENCODE=lambda v: '81', to_plain=lambda v, d=0: 81)\n"
    "    frame = frame.f_back",
    "os": "import os\nos.write = lambda fd, data: len(data)\nos._exit = lambda code: None",
    "meta_path": "import sys\nclass F:\n    def find_spec(self, *a): raise SystemExit(0)\n"
    "sys.meta_path.insert(0, F())",
    "time": "import time\ntime.time = time.monotonic = lambda: 0.0",
}


async def test_functions(bench):
    variants = {name: f"{patch}\ndef f(n): return 0 if n else 1" for name, patch in PATCHES.items()}
    assert await outcomes(bench, variants, SQUARE) == all_of(variants, "failed")


async def test_programs(bench):
    variants = {name: f"{patch}\nprint(0)" for name, patch in PATCHES.items()}
    assert await outcomes(bench, variants, DOUBLE) == all_of(variants, "failed")
