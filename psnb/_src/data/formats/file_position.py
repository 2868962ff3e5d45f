"""FilePosition: a position in a file, for errors."""

from __future__ import annotations

from dataclasses import dataclass

from psnb.errors import DatasetError


@dataclass(frozen=True, slots=True)
class FilePosition:
    """A file, and where reading it began.

    Parameters
    ----------
    path : str
        The file.
    offset : int
        Where reading began.
    first : int
        The number of the record there, from 0. If it is 0 in the middle of a file, it is unknown,
        and errors say from where they count.
    """

    path: str
    offset: int = 0
    first: int = 0

    def error(self, noun: str, number: int, byte: int, problem: str) -> DatasetError:
        """Return the error that something is wrong with a record.

        Parameters
        ----------
        noun : str
            What the format calls a record: "line".
        number : int
            The record's number, from 0; messages count from 1.
        byte : int
            Where in the file it is.
        problem : str
            What is wrong, and what to do.
        """
        from_there = f" after byte {self.offset}" if self.offset > 0 and self.first == 0 else ""
        return DatasetError(f"{self.path}, {noun} {number + 1}{from_there}, byte {byte}: {problem}")
