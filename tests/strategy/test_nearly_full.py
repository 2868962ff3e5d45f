"""When a server is said to be nearly full."""

from psnb._src.placement.layout import ServerAddress
from psnb._src.strategy.nearly_full import NearlyFull
from psnb._src.utils.process_memory.limits import MemoryUse


def use(used: int) -> MemoryUse:
    return MemoryUse(used, 100 - used, 100, "that the machine has")


def test_it_is_said_once_until_there_is_room_again() -> None:
    full = NearlyFull(ServerAddress("tcp://a:1", "psnb-server-x-0"))
    found = [full.news(each) for each in map(use, (10, 79, 80, 95, 76, 90, 74, 79, 81))]
    assert [bool(each) for each in found] == [at in (2, 8) for at in range(9)]
    assert "server 0 at tcp://a:1 is nearly full: of the 100 bytes that the machine" in found[2]
    assert "20 are left" in found[2]


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert NearlyFull(ServerAddress("tcp://a:1", "psnb-server-x-0")).news(None) == ""
