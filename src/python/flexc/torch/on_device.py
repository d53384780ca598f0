"""Plans of packed documents whose lengths are on a GPU: each call updates them on its stream, without a look at them.

A CUDA graph that captures a call so reads at each replay what the lengths' memory then holds.
"""
import threading

import torch

from .. import errors
from .kept import Kept


class Plans:
    """By what calls have in common: a plan for each thread and stream, which updates it in its own order.

    A graph keeps its plans, apart from those of calls that are not captured. Graphs that one stream of a thread
    captured share them: they run one after the other.
    """

    def __init__(self):
        self._plans, self._captured = Kept(), {}

    def get(self, place, lengths, device, make):
        """The plan of a call, with its lengths; make() gives a new one that has them."""
        stream = torch.cuda.current_stream(device).cuda_stream
        here = threading.get_ident(), stream
        if torch.cuda.is_current_stream_capturing():
            plan = self._of_graph(place, here)
        else:
            own = self._plans.get(place)
            if own is None:
                own = self._plans.put(place, {})
            plan = own.get(here)
            if plan is None:
                own[here] = plan = make()
                return plan
        plan.update_lengths(lengths, None, stream)
        return plan

    def _of_graph(self, place, here):
        plan = self._captured.get((place, here))
        if plan is None:
            own = self._plans.get(place, {})
            # One that this thread had for what it ran before the capture, on whatever stream.
            known = here if here in own else next((key for key in own if key[0] == here[0]), None)
            if known is None:
                raise errors.InvalidOption("a plan cannot be made while a CUDA graph is captured: make this call, with "
                                           "tensors of these shapes and strides, once before the capture")
            plan = self._captured[place, here] = own.pop(known)
        return plan
