"""Objects that say they equal everything are no answer."""

from judging import SQUARE, all_of, outcomes

LIE = "\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
VARIANTS = {
    "object": f"class E:{LIE}    __hash__ = None\ndef f(n): return E()",
    "int": f"class E(int):{LIE}    __hash__ = int.__hash__\ndef f(n): return E(7)",
    "float": f"class E(float):{LIE}    def __sub__(self, o): return E(0)\ndef f(n): return E(0)",
    "str": f"class E(str):{LIE}    def strip(self): return self\ndef f(n): return E('')",
    "list": f"class E(list):{LIE}    def __len__(self): return 1\ndef f(n): return E()",
    "dict": f"class E(dict):{LIE}    def items(self): return []\ndef f(n): return E()",
    "class": f"class E:{LIE}    __class__ = property(lambda s: int)\ndef f(n): return E()",
    "meta": f"class M(type):{LIE}    __mro__ = (int, object)\nclass E(metaclass=M): pass\n"
    "def f(n): return E",
    "mock": "from unittest.mock import ANY\ndef f(n): return ANY",
    "callable": f"class E:{LIE}    def __call__(self, *a): return self\nf = E()",
    "reduce": "class E:\n    def __reduce__(self): return (eval, ('1',))\ndef f(n): return E()",
}


async def test_nothing_that_overrides_operators_passes(bench):
    assert await outcomes(bench, VARIANTS, SQUARE) == all_of(VARIANTS, "failed")
