"""Reading what a step of the search tells one step later, so that a GPU always has work while its numbers are on the way.

The search takes a step more than it needs, which is without effect. This does not travel: without it the search waits for each
step and finds the same.
"""

import torch


class LateReading:
    """The numbers of each step, given back at the next one."""

    def __init__(self):
        self.sent: tuple | None = None

    def exchange(self, asked: tuple | None) -> tuple | None:
        """What was handed in before, its numbers on the CPU.

        Args:
            asked (tuple, optional): Numbers [n] of a device, and whatever belongs to them; None at the end.

        Returns:
            tuple: The same of the last call; None at the first.
        """
        before, self.sent = self.sent, None
        if asked is not None:
            numbers, *context = asked
            # The copy is made in pinned memory, while the device and this thread go on.
            host = numbers.to("cpu", non_blocking=True)
            event = torch.cuda.current_stream(numbers.device).record_event() if numbers.is_cuda else None
            self.sent = (event, host, *context)
        if before is None:
            return None
        event, *told = before
        if event is not None:
            event.synchronize()
        return tuple(told)
