"""The same chains by psnb and by TensorFlow, where `TENSORFLOW_PYTHON` names one that has it."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import numpy as np
import pytest

from psnb.data import Dataset
from tests.data.elements import values

PYTHON = os.environ.get("TENSORFLOW_PYTHON")

CHAINS = [
    "D.range(10).batch(4)",
    "D.range(10).batch(4, drop_remainder=True).unbatch()",
    "D.range(3).repeat(3).batch(4)",
    "D.range(10).skip(3).take(4).enumerate(7)",
    "D.range(10).shard(3, 1)",
    "D.range(10).filter(lambda x: x % 3 == 0).map(lambda x: x * x)",
    "D.zip((D.range(5), D.range(10, 13)))",
    "D.range(4).concatenate(D.range(2)).repeat(2)",
    "D.range(6).flat_map(lambda x: D.range(x))",
    "D.range(9).interleave(lambda x: D.range(x), cycle_length=3, block_length=2)",
    "D.range(7).interleave(lambda x: D.range(x % 3), cycle_length=4, block_length=1)",
    "D.range(5).interleave(lambda x: D.from_tensors(x).repeat(x), cycle_length=2, block_length=3)",
    "D.range(10).window(4, shift=3).flat_map(lambda w: w.batch(4))",
    "D.range(10).window(3, shift=2, stride=2).flat_map(lambda w: w.batch(9))",
    "D.range(10).window(3, shift=5, stride=2, drop_remainder=True).flat_map(lambda w: w.batch(9))",
    "D.range(10).window(2, shift=7).flat_map(lambda w: w)",
    "D.range(6).scan(np.int64(0), lambda s, x: (s + x, s * x))",
    "D.from_tensor_slices({'a': [1, 2, 3], 'b': ([4, 5, 6], [7, 8, 9])}).batch(2)",
    "D.range(10).prefetch(2).cache().repeat(2).take(13)",
    "D.range(20).take_while(lambda x: x * x < 50)",
    "D.range(20).map(lambda x: x * x % 7).unique()",
    "D.range(40).bucket_by_sequence_length(lambda x: x * x % 11, [2, 4, 6], [3, 2, 4, 5])",
    "D.range(40).bucket_by_sequence_length(lambda x: x % 5, [2, 4], [3, 4, 5], no_padding=True,"
    " drop_remainder=True)",
    "D.range(1, 9).flat_map(lambda i: D.zip((D.from_tensors(i), D.range(i).batch(99))))"
    ".bucket_by_sequence_length(lambda i, x: i, [2, 5], [2, 2, 2])",
    "D.range(0).repeat()",
    "D.range(5).repeat(0)",
]

_PEER = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
D = tf.data.Dataset
def plain(x):
    if isinstance(x, dict): return {k: plain(v) for k, v in x.items()}
    return [plain(v) for v in x] if isinstance(x, tuple) else np.asarray(x).tolist()
found = [[plain(x) for x in eval(text).as_numpy_iterator()] for text in json.load(sys.stdin)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    if PYTHON is None:
        pytest.skip("TENSORFLOW_PYTHON names no interpreter that has TensorFlow")
    done = subprocess.run(
        [PYTHON, "-c", _PEER],
        input=json.dumps(CHAINS),
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return dict(zip(CHAINS, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("text", CHAINS)
def test_elements_are_those_that_tensorflow_gives(text: str, theirs: dict[str, Any]) -> None:
    ours = values(eval(text, {"D": Dataset, "np": np}))
    assert json.loads(json.dumps(ours)) == theirs[text]
