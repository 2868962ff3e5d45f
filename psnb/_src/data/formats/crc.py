"""CRC-32C, as TFRecord files have it.

Polynomial 0x1EDC6F41 (Castagnoli), eight bytes at a step (Kounavis and Berry: *A Systematic
Approach to Building High Performance Software-Based CRC Generators*, ISCC 2005). The mask is
TensorFlow's, so that the sum of data that hold sums is as good as any.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from psnb._src.data.formats.words import word_at

_REFLECTED = 0x82F63B78


def _tables() -> np.ndarray:
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_REFLECTED if value & 1 else 0)
        tables[0, byte] = value
    for step in range(1, 8):
        before = tables[step - 1]
        tables[step] = (before >> np.uint64(8)) ^ tables[0][before & np.uint64(0xFF)]
    return tables.reshape(-1)


_TABLES = _tables()
_BYTE, _ONES, _MASK = np.uint64(0xFF), np.uint64(0xFFFFFFFF), np.uint64(0xA282EAD8)


@njit(cache=True, nogil=True)
def masked_crc(data, start, stop):  # type: ignore[no-untyped-def]
    """Return the masked CRC-32C of ``data[start:stop]`` (uint8, in bounds) as a uint64."""
    crc = _ONES
    at = start
    while at + 8 <= stop:
        x = word_at(data, at) ^ crc
        crc = (
            _TABLES[np.uint64(1792) + (x & _BYTE)]
            ^ _TABLES[np.uint64(1536) + ((x >> np.uint64(8)) & _BYTE)]
            ^ _TABLES[np.uint64(1280) + ((x >> np.uint64(16)) & _BYTE)]
            ^ _TABLES[np.uint64(1024) + ((x >> np.uint64(24)) & _BYTE)]
            ^ _TABLES[np.uint64(768) + ((x >> np.uint64(32)) & _BYTE)]
            ^ _TABLES[np.uint64(512) + ((x >> np.uint64(40)) & _BYTE)]
            ^ _TABLES[np.uint64(256) + ((x >> np.uint64(48)) & _BYTE)]
            ^ _TABLES[x >> np.uint64(56)]
        )
        at += 8
    while at < stop:
        crc = (crc >> np.uint64(8)) ^ _TABLES[(crc ^ np.uint64(data[np.uint64(at)])) & _BYTE]
        at += 1
    crc ^= _ONES
    return (((crc >> np.uint64(15)) | (crc << np.uint64(17))) + _MASK) & _ONES
