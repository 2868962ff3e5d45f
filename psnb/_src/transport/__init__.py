"""Messages between processes: streams over Dask's connections, and shared memory on one host."""

from psnb._src.transport.arena import Probe, can_see, probe
from psnb._src.transport.connecting import connect
from psnb._src.transport.halved import Halved, halved, widened
from psnb._src.transport.message import Message, part_unwired, unwired
from psnb._src.transport.stream import (
    MessageStream,
    UnreadableError,
    UnreceivedError,
    message_stream,
)

__all__ = [
    "Halved",
    "Message",
    "MessageStream",
    "Probe",
    "UnreadableError",
    "UnreceivedError",
    "can_see",
    "connect",
    "halved",
    "message_stream",
    "part_unwired",
    "probe",
    "unwired",
    "widened",
]
