"""Finding where the records of a CSV file end, compiled by numba."""

from __future__ import annotations

from numba import njit

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_START, _FIELD, _QUOTED, _MAYBE_CLOSED = 0, 1, 2, 3


@njit(cache=True, nogil=True)
def count_fields(data, delimiter):  # type: ignore[no-untyped-def]
    """Return how many fields a record has."""
    count = 1
    state = _START
    for byte in data:
        if state == _QUOTED:
            if byte == _QUOTE:
                state = _MAYBE_CLOSED
        elif byte == _QUOTE and state != _FIELD:
            state = _QUOTED
        elif byte == delimiter:
            count += 1
            state = _START
        else:
            state = _FIELD
    return count


@njit(cache=True, nogil=True)
def ends_in_quotes(record, delimiter):  # type: ignore[no-untyped-def]
    """Return whether a quote in a record is never closed."""
    state = _START
    for byte in record:
        if state == _QUOTED:
            if byte == _QUOTE:
                state = _MAYBE_CLOSED
        elif byte == _QUOTE and state != _FIELD:
            state = _QUOTED
        else:
            state = _START if byte == delimiter else _FIELD
    return state == _QUOTED


@njit(cache=True, nogil=True)
def find_records(data, delimiter, last, starts):  # type: ignore[no-untyped-def]
    r"""Write where records begin (int64), as many as there is room for, and where the last ends.

    Records end with ``\n``, ``\r\n`` or ``\r`` outside of quotes; empty lines are none. One that
    ``data`` does not hold whole counts if it is the file's ``last``.

    Returns how many there are, ``starts`` holding one entry more.
    """
    count = 0
    state = _START
    begin = 0
    starts[0] = 0
    for at in range(data.size):
        byte = data[at]
        if state == _QUOTED:
            if byte == _QUOTE:
                state = _MAYBE_CLOSED
        elif byte == _QUOTE and state != _FIELD:
            # The first of a field, or the second of two within quotes.
            state = _QUOTED
        elif byte == delimiter:
            state = _START
        elif byte in (_NEWLINE, _RETURN):
            # Between the two bytes of one end, there is an empty line.
            if at > begin:
                starts[count] = begin
                count += 1
                starts[count] = at + 1
                if count + 1 == starts.size:
                    return count
            begin = at + 1
            state = _START
        else:
            state = _FIELD
    if last and begin < data.size:
        starts[count] = begin
        count += 1
        starts[count] = data.size
    return count
