"""Patience: the seconds that a parent waits for processes and threads that end, and the limits of restarts.

All waits end early when the awaited event comes; these bounds matter only for processes that hang, and for functions
of the user that take long. A bound that is too short kills work that would have ended; one that is too long keeps a
person waiting after Ctrl-C.
"""

from typing import Final

from penstock._frozen import frozen

FUNCTION_SECONDS: Final = 2.0
"""The time that a process or thread has to return from a function of the user once its work isn't wanted any more.

Decoding an image or reading a block takes milliseconds, so nearly every function ends by itself in this time. Then a
process is killed; a thread can't be, and stays behind as a daemon.
"""

PIPELINE_SECONDS: Final = 5.0
"""The time that a pipeline's process has to end its stages after `stop()`, which documents it.

Stages write files and close connections when they end, so they get more time than a single function.
"""

ABANDONED_SECONDS: Final = 0.5
"""The time that a pipeline's process has to end without `stop`: its pipeline was dropped, or the program ends."""

EXIT_CODE_SECONDS: Final = 0.5
"""The time that a process has to end by itself once it has closed its pipe.

It is about to end with an exit code of its own, which says more than a kill; but a child of it may keep it alive.
"""

SERVER_ANSWER_SECONDS: Final = 1.0
"""The time that the fork server has to send the exit code of a process that has ended.

It sends it at once, unless it imports a module for another process at that moment. Without it the code is unknown.
"""

SERVER_END_SECONDS: Final = 1.0
"""The time that a fork server has to end once its control socket is broken.

It has been killed, so this takes microseconds.
"""

FIRST_RESTART_SECONDS: Final = 0.05
LONGEST_RESTART_SECONDS: Final = 5.0
"""The bounds of the delay before another process is started where those before it did nothing; it doubles each time.

Processes that die at once would otherwise be started as fast as the processor allows. The longest delay is what a
machine that recovers (from a lack of memory, say) costs at most.
"""


@frozen
class RestartPolicy:
    """Limits how often processes with one number are started again.

    Deaths before the start was complete are counted in points, and a process that has started sets them to 0. Deaths
    after the start never end the restarts: the owner decides what they mean for its work.

    Attributes:
        limit: at so many points no other process is started.
        failed_start: points of a process that ended by itself, or hung, before it had started.
        killed_start: points of one that was killed before it had started, by the system perhaps, or whose fork server
            was.
        first_must_start: whether one such death is the limit as long as no process of any number has started.
        prompt_restarts: after so many deaths in a row without any work done, restarts are delayed, longer each time;
            None delays none.
    """

    limit: int = 1
    failed_start: int = 1
    killed_start: int = 1
    first_must_start: bool = False
    prompt_restarts: int | None = None
