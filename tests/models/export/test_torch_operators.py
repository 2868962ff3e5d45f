"""Tests of the operators of PyTorch that exported models may call."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import psnb
import psnb.torch
from psnb._src.models.export.torch_operators import ALLOWED
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError, ExportError
from tests.models.export.rows_model import Model
from tests.models.export.test_export import any_ids, chunks
from tests.models.export.test_hostile_models import PROGRAM, forge
from tests.models.placing import InProcessStrategy

X = torch.linspace(-2, 2, 32).reshape(4, 8)
SEQUENCE = torch.linspace(-1, 1, 4 * 6 * 8).reshape(4, 6, 8).sin()
IMAGE = torch.linspace(-1, 1, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8).cos()
IDS = torch.arange(20).reshape(4, 5) % 8


class Applied(nn.Module):
    """A function of modules and a batch."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.parts, self.function = nn.ModuleList(modules), function

    def forward(self, x: Tensor) -> Any:
        return self.function(*self.parts, x)


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(8, 4, mode="sum") for _ in range(3))
        self.bottom, self.top = nn.Linear(5, 4), nn.Sequential(nn.Linear(10, 1), nn.Sigmoid())

    def forward(self, ids: Tensor) -> Tensor:
        dense = self.bottom(ids.float()).relu()
        parts = torch.stack([dense, *(table(ids) for table in self.tables)], 1)
        products = parts @ parts.transpose(1, 2)
        low, high = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([dense, products[:, low, high]], 1))


class DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.first = nn.Embedding(8, 4), nn.Embedding(8, 1)
        self.deep = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table(ids)
        pairs = (rows.sum(1).pow(2) - rows.pow(2).sum(1)).sum(1, keepdim=True) / 2
        return torch.sigmoid(self.first(ids).sum(1) + pairs + self.deep(rows.flatten(1)))


class DCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cross, self.gate = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)), nn.Linear(8, 3)
        self.low, self.high = (nn.Parameter(torch.rand(3, 8, 8)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        found = x
        for each in self.cross:
            found = x * each(found) + found
        experts = torch.einsum("eij,bj->bei", self.low, found).tanh()
        experts = torch.einsum("eij,bej->bei", self.high, experts)
        return (experts * self.gate(found).softmax(-1)[..., None]).sum(1)


class DIN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, padding_idx=0)
        self.score = nn.Sequential(nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table(ids)
        target = rows[:, :1].expand_as(rows)
        both = torch.cat([target, rows, target - rows, target * rows], -1)
        shares = self.score(both).squeeze(-1).masked_fill(ids == 0, -1e9).softmax(1)
        return (shares.unsqueeze(1) @ rows).squeeze(1)


def changed(x: Tensor) -> Tensor:
    found = torch.empty_like(x)
    found.copy_(x)
    found[:, 0] = 1
    found[:, 1:3] = x[:, :2]
    found[:, torch.tensor([4, 5])] = 3.0
    return found.add_(1).mul_(x).clamp_(0).masked_fill_(x > 1, 2)


def moved(x: Tensor) -> list[Tensor]:
    where = torch.tensor([[0, 2]]).expand(x.shape[0], 2)
    rows = torch.tensor([0, 1])
    return [
        *(x[:, rows], x.gather(1, where), x.index_select(1, rows)),
        *(x.scatter(1, where, 1.0), x.scatter_add(1, where, x), x.index_add(1, rows, x[:, :2])),
        *(x.scatter_reduce(1, where, x, "amax"), x.index_fill(1, rows, 1.0), x.flip(1), x.roll(1)),
        *(torch.where(x > 0, x, 0.0), x.masked_fill(x > 0, 1.0), x.tril(), x.triu(), x[:, ::2]),
    ]


def ordered(x: Tensor) -> list[Tensor]:
    borders = torch.tensor([-1.0, 0.0, 1.0])
    return [
        *(*x.sort(1), x.argsort(1), *x.topk(3, 1), *x.kthvalue(2, 1), *x.cummax(1)),
        *(torch.bucketize(x, borders), torch.searchsorted(borders, x), torch.isin(x, borders)),
        *(x.unique(), x.cumsum(1), x.cumprod(1), x.logcumsumexp(1), *x.median(1)),
    ]


def reduced(x: Tensor) -> list[Tensor]:
    return [
        *(x.sum(1), x.mean(1), x.amax(1), x.amin(1), x.argmax(1), x.prod(1), x.std(1), x.var(1)),
        *(x.norm(dim=1), x.logsumexp(1), (x > 0).all(1), (x > 0).any(1), *x.max(1), x.nansum(1)),
        *(
            torch.linalg.vector_norm(x, dim=1),
            x.softmax(1),
            x.log_softmax(1),
            functional.normalize(x),
        ),
    ]


def cast(x: Tensor) -> list[Tensor]:
    kinds = [torch.float64, torch.float16, torch.int32, torch.int64, torch.int8, torch.bool]
    return [x.to(kind) for kind in kinds] + [x.bfloat16().float(), x.int().view(torch.float32)]


def made(x: Tensor) -> list[Tensor]:
    count = x.shape[0]
    return [
        *(torch.arange(count), torch.zeros(count, 2), torch.ones(2), torch.full((count,), 2.0)),
        *(torch.eye(3), torch.zeros_like(x), x.new_ones(3), torch.linspace(0, 1, 5)),
        *(torch.empty(3).fill_(2), x.new_empty(2).zero_(), torch.tensor([1, 2])),
    ]


def attended(x: Tensor) -> Tensor:
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def in_bags(x: Tensor) -> list[Tensor]:
    repeats = torch.tensor([1, 0, 2])
    weights = torch.arange(12.0).reshape(4, 3)
    offsets = torch.tensor([0, 2, 2])
    return [
        torch.repeat_interleave(x[:, :3], repeats, 1, output_size=3),
        x.repeat_interleave(2, 1),
        functional.embedding_bag(torch.tensor([0, 3, 1]), weights, offsets, mode="sum"),
        functional.one_hot((x > 0).long(), 3),
    ]


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.LayerNorm(4), nn.Dropout()), X),
    "activations": (
        lambda: nn.Sequential(
            nn.SiLU(), nn.ELU(), nn.Mish(), nn.Softplus(), nn.LeakyReLU(), nn.Tanh()
        ),
        X,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same"),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.GroupNorm(2, 4),
            nn.ConvTranspose2d(4, 3, 2),
            nn.InstanceNorm2d(3, affine=True),
            nn.AvgPool2d(2),
            nn.AdaptiveAvgPool2d(1),
        ),
        IMAGE,
    ),
    "interpolation": (
        lambda: Applied(
            lambda x: [
                functional.interpolate(x, scale_factor=2, mode=mode)
                for mode in ("nearest", "bilinear", "bicubic", "area")
            ]
        ),
        IMAGE,
    ),
    "padding": (
        lambda: Applied(
            lambda x: [
                functional.pad(x, (1, 1), mode)
                for mode in ("constant", "reflect", "replicate", "circular")
            ]
        ),
        SEQUENCE,
    ),
    "LSTM": (lambda: Applied(lambda m, x: m(x)[0], nn.LSTM(8, 5, 2, batch_first=True)), SEQUENCE),
    "LSTM both ways": (
        lambda: Applied(
            lambda m, x: m(x)[0],
            nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True, proj_size=3),
        ),
        SEQUENCE,
    ),
    "GRU": (lambda: Applied(lambda m, x: m(x)[0], nn.GRU(8, 5, batch_first=True)), SEQUENCE),
    "transformer": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        SEQUENCE,
    ),
    "attention": (
        lambda: Applied(lambda m, x: m(x, x, x)[0], nn.MultiheadAttention(8, 2, batch_first=True)),
        SEQUENCE,
    ),
    "attention alone": (lambda: Applied(attended), SEQUENCE),
    "DLRM": (DLRM, IDS),
    "DeepFM": (DeepFM, IDS),
    "DCN": (DCN, X),
    "DIN": (DIN, IDS),
    "bags": (lambda: Applied(in_bags), X),
    "assignments": (lambda: Applied(changed), X),
    "places": (lambda: Applied(moved), X),
    "order": (lambda: Applied(ordered), X),
    "reductions": (lambda: Applied(reduced), X),
    "casts": (lambda: Applied(cast), X),
    "new tensors": (lambda: Applied(made), X),
    "products": (lambda: Applied(lambda x: [x @ x[0], torch.einsum("bi,ci->bc", x, x)]), X),
    "linear algebra": (
        lambda: Applied(
            lambda x: [torch.linalg.inv(x.mT @ x + 3 * torch.eye(8)), *torch.linalg.qr(x)]
        ),
        SEQUENCE,
    ),
    "spectra": (lambda: Applied(lambda x: [torch.fft.rfft(x).abs(), torch.fft.fft2(x).real]), X),
    "losses": (
        lambda: Applied(
            lambda x: [
                functional.binary_cross_entropy_with_logits(x, x.sigmoid(), reduction="none"),
                functional.cross_entropy(x, x.argmax(1), reduction="none"),
                functional.mse_loss(x, x + 1, reduction="none"),
            ]
        ),
        X,
    ),
}


FIRST = {"activations", "DLRM", "places", "casts"}
FURTHER = pytest.mark.second_tier("further operators of the same list")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in FIRST else FURTHER) for each in MODELS]
)
@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_models_predict_what_they_did_before(tmp_path: Path, name: str) -> None:
    torch.manual_seed(3)
    make, batch = MODELS[name]
    model = psnb.torch.distribute(make(), InProcessStrategy(), sparse=SGD(1), dense=SGD(1)).eval()
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model, example=(batch,)))
    with torch.no_grad():
        expected = model(batch)
    found = loaded.predict({loaded.feeds[0].name: batch.numpy()} if loaded.feeds else {})
    for one, other in zip(
        *(each if isinstance(each, list) else [each] for each in (found, expected)), strict=True
    ):
        np.testing.assert_allclose(one, other.detach().numpy(), atol=1e-5)


def test_operators_that_check_too_little_cannot_be_exported(tmp_path: Path) -> None:
    module = Applied(lambda x: torch.as_strided(x, (2, 2), (1, 1)))
    model = psnb.torch.distribute(module, InProcessStrategy(), dense=SGD(1)).eval()
    with pytest.raises(ConfigurationError, match=r"calls aten.as_strided.default.*report it"):
        psnb.export(tmp_path / "m", model, example=(X,))


def test_each_operator_is_there_once_and_exists() -> None:
    for name in ALLOWED:
        packet, _, overload = name.partition(".")
        found = getattr(torch.ops.aten, packet, None)
        assert found is None or not overload or overload in found.overloads(), name
        assert found is not None or packet.startswith(("_", "rms", "sym", "numpy", "linalg")), name


# Forged programs: their nodes; the last one is what is returned.
Node = list[Any]


def aten(name: str, *args: Any, **kwargs: Any) -> Node:
    return [f"aten.{name}", list(args), kwargs]


def at(number: int) -> dict[str, int]:
    return {"node": number}


def full(size: list[int], value: float, kind: str = "float32") -> Node:
    return aten("full.default", size, value, dtype={"dtype": kind})


@pytest.fixture
def forged(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a model with these nodes behind its input, number 0."""

    def write(*nodes: Node) -> Path:
        path = psnb.export(tmp_path / "m", Model(*chunks(any_ids(10))))
        program = json.loads((path / PROGRAM).read_text())
        program.update(nodes=list(nodes), outputs=[at(len(nodes))])
        (path / PROGRAM).write_text(json.dumps(program))
        forge(path)
        return path

    return write


@pytest.mark.parametrize(
    "name",
    [
        "_sparse_coo_tensor_unsafe.default",
        "_sparse_coo_tensor_with_dims_and_tensors.default",
        "sparse_coo_tensor.indices_size",
        "_to_dense.default",
        "to_dense.default",
        "segment_reduce.default",
        "empty.memory_format",
        "empty_like.default",
        "empty_strided.default",
        "empty_permuted.default",
        "new_empty.default",
        "resize.default",
        "set.source_Tensor",
        "as_strided.default",
        "as_strided_copy.default",
        "_reshape_alias.default",
        "_unsafe_index.Tensor",
        "_unsafe_masked_index.default",
        "_unsafe_index_put.default",
        "_convert_indices_from_csr_to_coo.default",
        "_convert_indices_from_coo_to_csr.default",
        "quantize_per_tensor.default",
        "_make_per_tensor_quantized_tensor.default",
        "_empty_affine_quantized.default",
        "max_pool2d_with_indices_backward.default",
        "embedding_dense_backward.default",
        "lstm.data",
        "upsample_nearest2d.default",
        "ctc_loss.IntList",
        "linalg_lu_solve.default",
        "linalg_ldl_solve.default",
        "_nested_view_from_buffer.default",
        "to_mkldnn.default",
        "from_file.default",
        "_fft_c2c.default",
    ],
)
def test_operators_that_leave_their_tensors_are_refused(
    forged: Callable[..., Path], name: str
) -> None:
    with pytest.raises(ExportError, match=f"calls 'aten.{name}', which is not an operator"):
        psnb.load_model(forged(aten(name, at(0))))


@pytest.mark.parametrize(
    "name",
    [
        "prim.device.default",
        "prims.empty.default",
        "prims.as_strided.default",
        "inductor.resize_storage_bytes_.default",
        "quantized.embedding_bag_byte.default",
        "mkldnn._convolution_pointwise.default",
        "tests.doubled.default",
        "cond",
        "higher_order.cond",
        "while_loop",
        "torch.frombuffer",
    ],
)
def test_operators_of_others_are_refused(forged: Callable[..., Path], name: str) -> None:
    with pytest.raises(ExportError, match="which is not an operator of a model"):
        psnb.load_model(forged([name, [at(0)], {}]))


@pytest.mark.parametrize(
    "argument", [{"layout": "sparse_coo"}, {"layout": "_mkldnn"}, {"dtype": "qint8"}]
)
def test_tensors_of_other_kinds_are_refused(forged: Callable[..., Path], argument: Any) -> None:
    with pytest.raises(ExportError, match="an argument in its program"):
        psnb.load_model(forged(aten("zeros.default", [2, 2], layout=argument)))


FAR = 2**40


def bags(name: str, offsets: list[Any]) -> list[Node]:
    return [
        aten("arange.default", 9),
        *offsets,
        full([4, 8], 1),
        aten(name, at(2 + len(offsets)), at(1), at(1 + len(offsets)), False, 0, False, None, False),
        ["getitem", [at(3 + len(offsets)), 0], {}],
    ]


def lstm(size: int, width: int, biases: int) -> list[Node]:
    return [
        full([2, 3, 8], 1),
        full([1, 2, size], 0),
        full([20, width], 1),
        full([20, 5], 1),
        full([biases], 1),
        aten(
            "lstm.input",
            *(at(1), [at(2), at(2)], [at(3), at(4), at(5), at(5)]),
            *(True, 1, 0.0, False, False, True),
        ),
        ["getitem", [at(6), 0], {}],
    ]


def heads(*sizes: list[int]) -> list[Node]:
    return [full(size, 1) for size in sizes]


CHECKED: dict[str, list[Node]] = {
    "negative repeats": [
        aten("arange.start_step", 1_000_003, -1_000_001, -2_000_003),
        aten("repeat_interleave.Tensor", at(1), output_size=3),
    ],
    "bags that begin before their indices": bags(
        "embedding_bag.default", [full([2], -FAR, "int64")]
    ),
    "bags in another order": bags("_embedding_bag.default", [aten("arange.start_step", 9, -1, -4)]),
    "bags beyond the indices": bags(
        "embedding_bag.default", [aten("arange.start_step", 0, 2 * FAR, FAR)]
    ),
    "an LSTM of larger states": lstm(500, 8, 20),
    "an LSTM of fewer weights": lstm(5, 2, 20),
    "an LSTM of fewer biases": lstm(5, 8, 2),
    "a batch norm of fewer channels": [
        full([2, 64, 4, 4], 1),
        full([1], 1),
        aten(
            "_native_batch_norm_legit_no_training.default",
            *(at(1), at(2), at(2), at(2), at(2), 0.1, 1e-5),
        ),
        ["getitem", [at(3), 0], {}],
    ],
    "keys without values": [
        *heads([1, 2, 3, 4], [1, 2, 500, 4], [1, 2, 2, 4]),
        aten("scaled_dot_product_attention.default", at(1), at(2), at(3)),
    ],
    "flash attention without heads": [
        *heads([1, 64, 3, 4], [1, 1, 5, 4]),
        aten("_scaled_dot_product_flash_attention_for_cpu.default", at(1), at(2), at(2)),
        ["getitem", [at(3), 0], {}],
    ],
    "bags of several axes": [
        *(full([2, 3], 1), full([2, 3], 0, "int64"), full([2, 3, 2], 0, "int64")),
        aten("_embedding_bag.default", at(1), at(2), at(3)),
        ["getitem", [at(4), 0], {}],
    ],
    "a norm by what is not there": [
        full([1, 2, 3], 1),
        aten("_native_batch_norm_legit.no_stats", at(1), None, None, False, 0.1, 1e-5),
        ["getitem", [at(2), 0], {}],
    ],
    "flash attention to nothing": [
        *heads([1, 2, 3, 4], [1, 2, 0, 4]),
        aten("_scaled_dot_product_flash_attention_for_cpu.default", at(1), at(2), at(2)),
        ["getitem", [at(3), 0], {}],
    ],
    "flash attention of nothing": [
        *heads([1, 2, 0, 4], [1, 2, 3, 4]),
        aten("_scaled_dot_product_flash_attention_for_cpu.default", at(1), at(2), at(2)),
        ["getitem", [at(3), 0], {}],
    ],
    "a mode of sampling that is none": [
        full([1, 1, 4, 4], 1),
        full([1, 3, 3, 2], 0),
        aten("grid_sampler.default", at(1), at(2), 7, 0, False),
    ],
    "a quotient that is not an integer": [
        full([2], -(2**63), "int64"),
        full([2], -1, "int64"),
        aten("div.Tensor_mode", at(1), at(2), rounding_mode="trunc"),
    ],
    "a quotient that is not an integer of fewer bits": [
        full([2], -(2**31), "int32"),
        full([], 2**32 - 1, "int64"),
        aten("div.Tensor_mode", at(1), at(2), rounding_mode="trunc"),
    ],
    "an LSTM without states": [
        *heads([2, 3, 8], [1, 2, 0], [0, 8], [0, 0], [0]),
        aten(
            "lstm.input",
            *(at(1), [at(2), at(2)], [at(3), at(4), at(5), at(5)]),
            *(True, 1, 0.0, False, False, True),
        ),
        ["getitem", [at(6), 0], {}],
    ],
}


@pytest.mark.parametrize("name", CHECKED)
def test_arguments_that_pytorch_does_not_check_are_refused(
    forged: Callable[..., Path], name: str
) -> None:
    loaded = psnb.load_model(forged(*CHECKED[name]))
    with pytest.raises(ExportError, match="with arguments that cannot be"):
        loaded.predict({"ids": np.zeros((2, 2), np.int64)})


def places(name: str, *args: Any, source: bool = False) -> list[Node]:
    sources = [at(1)] if source else []
    return [full([2, 2], 1), full([2, 2], FAR, "int64"), aten(name, *args, *sources)]


OUTSIDE: dict[str, list[Node]] = {
    "embedding": places("embedding.default", at(1), at(2)),
    "gather": places("gather.default", at(1), 1, at(2)),
    "index": places("index.Tensor", at(1), [None, at(2)]),
    "index_put": [
        *places("alias.default", at(2)),
        aten("index_put.default", at(1), [at(2)], at(1)),
    ],
    "take": places("take.default", at(1), at(2)),
    "put": places("put.default", at(1), at(2), source=True),
    "scatter": places("scatter.src", at(1), 1, at(2), source=True),
    "scatter_add": places("scatter_add.default", at(1), 1, at(2), source=True),
    "one_hot": places("one_hot.default", at(2), 3),
    "max_unpool2d": [
        full([1, 2, 2], 1),
        full([1, 2, 2], FAR, "int64"),
        aten("max_unpool2d.default", at(1), at(2), [4, 4]),
    ],
    "index_select": [
        full([2, 2], 1),
        full([2], FAR, "int64"),
        aten("index_select.default", at(1), 0, at(2)),
    ],
    "nll_loss": [
        full([2, 2], 1),
        full([2], FAR, "int64"),
        aten("nll_loss_nd.default", at(1), at(2)),
    ],
    "searchsorted": [
        full([2], 1),
        full([2], FAR, "int64"),
        aten("searchsorted.Tensor", at(1), at(1), sorter=at(2)),
    ],
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_pytorch_refuses_places_outside(forged: Callable[..., Path], name: str) -> None:
    loaded = psnb.load_model(forged(*OUTSIDE[name]))
    with pytest.raises(
        (RuntimeError, IndexError), match=r"out of (range|bounds)|bound|Class value|invalid"
    ):
        loaded.predict({"ids": np.zeros((2, 2), np.int64)})


def test_uninitialized_memory_is_exported_as_zeros(tmp_path: Path) -> None:
    module = Applied(lambda x: [torch.empty(3), torch.empty_like(x), x.new_empty(2)])
    model = psnb.torch.distribute(module, InProcessStrategy(), dense=SGD(1)).eval()
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model, example=(X,)))
    for each in loaded.predict({"x": X.numpy()} if loaded.feeds else {}):
        assert math.isclose(np.abs(each).sum(), 0)


@pytest.mark.parametrize(
    "node",
    [
        aten("zeros.default", [2], dtype=99),
        aten("sum.default", at(0), dtype=-1),
        aten("to.dtype", at(0), 2**62),
        aten("view.dtype", at(0), 100),
        aten("ones.default", [2], layout=7),
        aten("zeros_like.default", at(0), memory_format=-1),
        aten("gcd.int", -(2**63), -1),
        aten("remainder.int", 1, 0),
    ],
)
def test_numbers_that_pytorch_takes_for_kinds_are_refused(
    forged: Callable[..., Path], node: Any
) -> None:
    with pytest.raises(ExportError, match=r"is a number|not an operator of a model"):
        psnb.load_model(forged(node))
