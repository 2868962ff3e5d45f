"""Which callbacks look at batches, so that the next batch waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from psnb._src.models.keras.fit import callback_list, looks_at_batches

callbacks = keras.callbacks


class AtBatches(callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


class Legacy(callbacks.Callback):
    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        pass


class Progress(callbacks.ProgbarLogger):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)


class AtEpochs(callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        pass

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


def checkpoint(folder: Path, save_freq: Any) -> Any:
    name = str(folder / "a.weights.h5")
    return callbacks.ModelCheckpoint(name, save_weights_only=True, save_freq=save_freq)


def looks(given: Any) -> bool:
    return looks_at_batches(callback_list([given], None, 1, epochs=1, steps=1))


def test_callbacks_of_users_that_have_a_hook_for_batches_look_at_them(tmp_path: Path) -> None:
    assert all(map(looks, [AtBatches(), Legacy(), Progress(), checkpoint(tmp_path, 3)]))
    assert looks(callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: None))


@pytest.mark.parametrize(
    "made",
    [
        AtEpochs,
        callbacks.TerminateOnNaN,
        callbacks.EarlyStopping,
        callbacks.ReduceLROnPlateau,
        lambda: callbacks.LearningRateScheduler(lambda epoch, rate: rate),
        lambda: callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        lambda: callbacks.CSVLogger("log.csv"),
    ],
)
def test_others_do_not_nor_do_those_of_keras_that_save_at_epochs(made: Any, tmp_path: Path) -> None:
    assert not looks(made())
    assert not looks(checkpoint(tmp_path, "epoch"))
