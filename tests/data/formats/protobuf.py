"""An encoder of ``tf.train.Example`` that knows nothing of ours, and of what else protobuf allows.

Written after https://protobuf.dev/programming-guides/encoding/ and TensorFlow's example.proto.
"""

from __future__ import annotations

import struct


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number >= 128:
        out.append(number % 128 + 128)
        number //= 128
    return bytes([*out, number])


def part(field: int, content: bytes) -> bytes:
    """Return a field of bytes (wire type 2)."""
    return varint(field * 8 + 2) + varint(len(content)) + content


def int64_list(values: list[int], packed: bool = True) -> bytes:
    """Return a Feature of integers."""
    if packed:
        return part(3, part(1, b"".join(map(varint, values))))
    return part(3, b"".join(varint(1 * 8 + 0) + varint(value) for value in values))


def float_list(values: list[float], packed: bool = True) -> bytes:
    """Return a Feature of floats."""
    if packed:
        return part(2, part(1, struct.pack(f"<{len(values)}f", *values)))
    return part(2, b"".join(varint(1 * 8 + 5) + struct.pack("<f", value) for value in values))


def bytes_list(values: list[bytes]) -> bytes:
    """Return a Feature of byte strings."""
    return part(1, b"".join(part(1, value) for value in values))


def entry(name: str, feature: bytes) -> bytes:
    """Return an entry of Features."""
    return part(1, part(1, name.encode()) + part(2, feature))


def example(features: dict[str, bytes]) -> bytes:
    """Return an Example."""
    return part(1, b"".join(entry(name, feature) for name, feature in features.items()))
