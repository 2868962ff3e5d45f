"""Writing a command that turns lines of any kind into MultiSlot text."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from psnb.errors import DatasetError

Sample = Sequence[tuple[str, Sequence[int | float | str]]]


class MultiSlotDataGenerator:
    """Turns lines into MultiSlot text, as Paddle's class of this name.

    Derive from it, write `generate_sample`, and let a script, which is then the ``pipe_command``
    of a dataset, call `run_from_stdin`.

    Examples
    --------
    ::

        class Clicks(MultiSlotDataGenerator):
            def generate_sample(self, line):
                label, *ids = line.split(",")
                yield [("ids", [int(i) for i in ids]), ("label", [float(label)])]

        if __name__ == "__main__":
            Clicks().run_from_stdin()
    """

    def generate_sample(
        self, line: str
    ) -> Iterable[Sample | None] | Callable[[], Iterable[Sample | None]]:
        """Return the examples that a line becomes, none or several.

        Parameters
        ----------
        line : str
            The line, with what ends it.

        Returns
        -------
        iterable, or function that returns one
            Per example a list of (slot, values), with the same slots in the same order each time;
            None is left out. Values are numbers, or texts without spaces, which are written as they
            are.
        """
        raise NotImplementedError("write generate_sample: it returns the examples of a line")

    def run_from_stdin(self) -> None:
        """Turn each line of the standard input into lines of the standard output.

        Raises
        ------
        DatasetError
            If a sample is not as `generate_sample` should give it; it names the line.
        """
        self.run(sys.stdin, sys.stdout)

    def run(self, lines: Iterable[str], out: TextIO) -> None:
        """Turn lines into MultiSlot text, as `run_from_stdin` does.

        Raises
        ------
        DatasetError
            If a sample is not as `generate_sample` should give it; it names the line.
        """
        names: list[str] | None = None
        for number, line in enumerate(lines, 1):
            samples = self.generate_sample(line)
            for sample in samples() if callable(samples) else samples:
                if sample is None:
                    continue
                found = [name for name, _ in sample]
                if names is None:
                    names = found
                elif found != names:
                    raise DatasetError(f"line {number}: its slots are {found}, not {names}")
                try:
                    out.write(" ".join(_slot(values) for _, values in sample) + "\n")
                except (TypeError, ValueError) as error:
                    raise DatasetError(f"line {number}: {sample}: {error}") from error
        out.flush()


def _slot(values: Sequence[Any]) -> str:
    if isinstance(values, (str, bytes)):
        raise TypeError(f"the values of a slot are a list, found {values!r:.60}")
    return " ".join([str(len(values)), *map(_text, values)])


def _text(value: Any) -> str:
    if isinstance(value, (str, bytes)):  # as it is: the digits of a number are not rounded
        text = value if isinstance(value, str) else value.decode()
        if text.split() != [text]:
            problem = "is not one word: MultiSlot text has spaces between values"
            raise ValueError(f"{text!r:.60} {problem}")
        return text
    if isinstance(value, bool):
        return repr(float(value))
    try:
        number = operator.index(value)  # unlike int(), it cuts no fractions of a tensor
    except TypeError:
        # The shortest text that is this float again.
        return repr(float(value))
    if not 0 <= number < 2**64:
        raise ValueError(f"{number} is not an unsigned 64-bit integer")
    return str(number)
