"""Tells a lost worker, which is replaced, from a script that is killed again and again."""

from __future__ import annotations

from shoal.train.job.actions import Exit, Finish, signal_name

_SIGKILL = 9
_LIMIT = 3


class Crashes:
    """Counts unexplained kills at one step. Several in one generation have one cause: one kill
    breaks the group of all, and a machine that shuts down ends all its processes."""

    def __init__(self) -> None:
        self._step = -1
        self._generations: set[int] = set()

    def add(self, exit: Exit, *, step: int, generation: int) -> Finish | None:
        """The end of the job, if this was one kill too many."""
        if exit.frozen or exit.signal is None:
            return None
        if step != self._step:
            self._step, self._generations = step, set()
        self._generations.add(generation)
        if len(self._generations) < _LIMIT:
            return None
        if exit.signal == _SIGKILL:
            what = f"a worker was killed {_LIMIT} times at step {step}: out of memory"
            why = "no worker gets past this step; the kernel kills the process that needs too much"
        else:
            what = f"a worker crashed {_LIMIT} times at step {step}"
            why = f"the script ends with {signal_name(exit.signal)}"
        return Finish(128 + exit.signal, what, why, exit.lines)
