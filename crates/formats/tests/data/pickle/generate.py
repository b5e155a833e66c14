"""Writes `protocol_{0..5}.pkl`: one object of all kinds, as each protocol of Python's own pickle spells it.

    python3 generate.py          (Python 3.8 or newer; the standard library alone)
"""

import collections
import fractions
import pathlib
import pickle
import pickletools


def specimen():
    shared = ["shared"]
    cyclic = [1]
    cyclic.append(cyclic)
    inner = []
    recursive = (inner, 7)  # a tuple that holds itself through a list
    inner.append(recursive)
    holder = collections.OrderedDict([("a", 1), ("b", 2.5)])
    holder["self"] = holder
    return {
        "none": None,
        "truth": [True, False],
        "integers": [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)],
        "long": [2**63, -(2**63) - 1, 2**64, 3**700],
        "floats": [0.0, -0.0, 1.5, 1e300, float("inf"), float("-inf"), float("nan")],
        "text": ["", "plain", "zwölf €uro \U0001f600", "line\nfeed \\ 'quote'"],
        "bytes": [b"", b"abc", bytes(range(256))],
        "array": bytearray(b"mutable\xff"),
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "sets": [set(), {1}, frozenset(), frozenset([2])],
        "shared": [shared, shared],
        "cyclic": cyclic,
        "recursive": recursive,
        "ordered": holder,
        "called": fractions.Fraction(3, 4),
        "class": collections.OrderedDict,
        7: "a key that is no text",
        ("tuple", 1): "nor this",
    }


if __name__ == "__main__":
    for protocol in range(6):
        data = pickle.dumps(specimen(), protocol=protocol)
        pickletools.dis(data, out=open("/dev/null", "w"))
        (pathlib.Path(__file__).parent / f"protocol_{protocol}.pkl").write_bytes(data)
