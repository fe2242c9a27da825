"""Which devices the stages may use. Pure: what torch sees and what was ordered in, devices out."""

from typing import Any, Dict, List, Tuple

from .spec import Spec


class Chosen:
    """devices: indexes in torch's order, () the CPU. skipped: (index, why) of those left alone.

    error: why the device that was asked for cannot be had, "" where it can.
    """

    def __init__(
        self,
        devices: Tuple[int, ...] = (),
        skipped: Tuple[Tuple[int, str], ...] = (),
        error: str = "",
    ) -> None:
        self.devices = devices
        self.skipped = skipped
        self.error = error

    def device(self, rank: int = 0) -> str:
        """The device of a rank, as torch names it."""
        return "cuda:%d" % self.devices[rank] if self.devices else "cpu"

    def world(self, ranks: int) -> int:
        """How many ranks fit: one a GPU, or two and more on the CPU."""
        if not self.devices:
            return ranks or 2
        return min(ranks or len(self.devices), len(self.devices))


def choose(spec: Spec, look: Dict[str, Any]) -> Chosen:
    """The GPUs to use: the one that was asked for, else all that nobody else is using."""
    if spec.device == "cpu":
        return Chosen()
    if spec.device:
        return _asked(spec.device, look)
    if not look.get("available"):
        return Chosen()
    reasons = _reasons(spec, look)
    everyone = range(int(look["count"]))
    return Chosen(
        tuple([index for index in everyone if index not in reasons]),
        tuple([(index, reasons[index]) for index in everyone if index in reasons]),
    )


def _asked(device: str, look: Dict[str, Any]) -> Chosen:
    """What --device names is used whoever else uses it."""
    count = int(look.get("count") or 0) if look.get("available") else 0
    if not count:
        why = str(look.get("error") or "the first look at CUDA did not end")
        if look and not look.get("built"):
            why = "this build of torch is for the CPU"
        return Chosen(error="torch sees no GPU: " + why)
    if device == "cuda":
        return Chosen(tuple(range(count)))
    index = int(device.partition(":")[2])
    if index >= count:
        return Chosen(error="there is no %s, torch sees %d" % (device, count))
    return Chosen((index,))


def _reasons(spec: Spec, look: Dict[str, Any]) -> Dict[int, str]:
    """By index in torch's order, why a GPU must be left alone."""
    devices: List[Dict[str, Any]] = look.get("devices") or []
    by_bus = {str(one["bus_id"]): int(one["index"]) for one in devices if one.get("bus_id")}
    reasons = {}
    for bus, position, reason in spec.skip:
        # Without an address the position is the best guess that does not disturb somebody.
        index = by_bus.get(bus, None if by_bus else position)
        if index is not None:
            reasons[index] = reason
    return reasons
