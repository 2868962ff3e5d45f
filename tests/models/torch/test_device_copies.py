"""Tests of the way to a device and back: one copy each, which a device that only counts shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from psnb._src.models.torch.tensors import _packed, _unpacked, from_device, to_device
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy
from tests.models.torch.wide_deep import (
    IDS,
    OFFSETS,
    WORDS,
    Normed,
    WideDeep,
    assert_same,
    distributed,
    step,
    step_alone,
)

ARRAYS = [
    np.arange(5, dtype=np.float32),
    np.arange(6, dtype=np.float64).reshape(2, 3),
    np.empty((0, 4), np.float32),
    np.array(7, np.int64),
    np.arange(3, dtype=np.float32),
]


class Copies(TorchDispatchMode):
    """Counts copies between devices; what comes back from one without memory is zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.there = self.back = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if function is torch.ops.aten._to_copy.default and "device" in options:
            source, target = args[0].device.type, torch.device(options["device"]).type
            if (source, target) == ("meta", "cpu"):
                self.back += 1
                return torch.zeros(args[0].shape, dtype=args[0].dtype)
            self.there += (source, target) == ("cpu", "meta")
        if function is torch.ops.aten.copy_.default:
            self.there += (args[1].device.type, args[0].device.type) == ("cpu", "meta")
        return function(*args, **options)


def test_arrays_of_all_kinds_come_out_of_a_buffer_as_they_went_in() -> None:
    tensors = [torch.from_numpy(each) for each in ARRAYS]
    whole = _packed(tensors)
    found = _unpacked(whole, tensors)
    for each, expected in zip(found, tensors, strict=True):
        assert each.dtype == expected.dtype
        torch.testing.assert_close(each, expected, rtol=0, atol=0)
        assert each.untyped_storage()._cdata == whole.untyped_storage()._cdata


def test_on_the_cpu_nothing_is_copied() -> None:
    for array, tensor in zip(ARRAYS, to_device(ARRAYS, torch.device("cpu")), strict=True):
        assert tensor.data_ptr() == array.ctypes.data or not array.size
    tensor = torch.ones(3, requires_grad=True)
    assert from_device([tensor])[0].ctypes.data == tensor.data_ptr()


def test_a_step_on_a_device_is_one_copy_there_and_one_back() -> None:
    model = distributed(WideDeep(), device="meta")
    for _ in range(3):
        copies = Copies()
        with copies, model.step():
            model(IDS, WORDS, OFFSETS.to("meta")).sum().backward()
        told = copies.there, copies.back
    # One there is that of the offsets, which belong to the caller.
    assert told == (2, 1)


def test_buffers_come_back_with_the_gradients() -> None:
    model = distributed(Normed(), sparse=None, device="meta")
    x = torch.ones(4, 3, device="meta")
    with Copies(), model.step():
        model(x).backward()
    with Copies() as copies, model.step():
        model(x).backward()
    assert (copies.there, copies.back) == (1, 1)


def test_a_device_that_a_process_does_not_have_is_refused_before_a_server_is_asked() -> None:
    strategy = InProcessStrategy()
    # The notebook need not have it.
    model = distributed(WideDeep(), strategy, device="xpu" if torch.cuda.is_available() else "cuda")
    assert model.eval().training is False
    model.train()
    strategy.calls()
    with pytest.raises(
        ConfigurationError, match=r"this process cannot compute on device.*Each worker that trains"
    ):
        step(model)
    assert strategy.calls() == 0


def test_a_device_that_there_is_nowhere_is_refused_before_anything_is_placed() -> None:
    strategy = InProcessStrategy()
    with pytest.raises(ConfigurationError, match="device='gpu' is not a device of PyTorch"):
        distributed(WideDeep(), strategy, device="gpu")
    assert not strategy.parameters


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_step_on_a_gpu_is_one_of_torch() -> None:
    class OnGpu(WideDeep):
        def forward(
            self, ids: Tensor, words: Tensor, offsets: Tensor, weights: Any = None
        ) -> Tensor:
            found = super().forward(ids, words, offsets.to(self.network[0].weight.device), weights)
            return found.cpu()

    module = OnGpu()
    model = distributed(module, device="cuda")
    for _ in range(3):
        assert step(model) == pytest.approx(step_alone(module), rel=1e-5)
    assert_same(model, module)
