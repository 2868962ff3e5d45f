"""How threads, event loops and interrupts meet: locks, answers, and waiting for other threads."""

from psnb._src.threads.answer import Answer
from psnb._src.threads.aside import aside, on_loop
from psnb._src.threads.interrupts import uninterrupted
from psnb._src.threads.locks import Condition, Lock

__all__ = [
    "Answer",
    "Condition",
    "Lock",
    "aside",
    "on_loop",
    "uninterrupted",
]
