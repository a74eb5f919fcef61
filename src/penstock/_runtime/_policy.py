"""The policy of the runtime: sizes, times and limits that trade one thing for another, each with its reason.

Someone may want another value of each number here, and no byte of a batch depends on one. Facts of a format or of the
system, such as the descriptors that a process takes, and lengths of texts in messages are beside the code that uses
them. The bounds of waits for processes and threads that end are in `_processes._patience`.

A comment says what a number bounds, and, after the colon, why it has this value.
"""

from collections.abc import Mapping
from typing import Final

from penstock._processes import RestartPolicy

# -- Jobs. Arming and taking one, and scheduling a block, take about 100 microseconds: small batches share a job.

JOB_SECONDS: Final = 0.02  # work of a job of several small batches or positions: its batches come together
COLLATE_JOB_SECONDS: Final = 0.005  # the same, above the folds: passing batches of a fold on takes a tenth of that
SMALL_BATCHES_BYTES: Final = 16_000_000  # all jobs of several batches: with 4 MB threads wait for each other
BELOW_MB_BYTES: Final = 24_000_000  # the same, of batches below 1 MB: with 16 MB one of 131 kB takes a tenth more time
MADE_BYTES: Final = 64_000_000  # the same, of functions' results in threads: with 16 MB one of 1 MB takes a third more
MEASURED_ITEMS: Final = 8  # items of a list in such a result that are measured: 64 dicts take half a millisecond
MAX_JOB_BATCHES: Final = 64  # batches of a job: the estimate of a batch's time may be wrong
CHEAP_JOB_SECONDS: Final = 0.002  # work of a job, up to which it may have more: a job takes a tenth of that
MAX_CHEAP_BATCHES: Final = 512  # batches of such a job: with more, passing a batch on takes hardly less time
CHEAP_BYTES: Final = 6_000_000  # all such jobs, in processes: with 16 MB a batch of 32 kB takes a third more time
MAX_COLLATE_BATCHES: Final = 32  # the same, above the folds: the fold has made all of them before the job begins
COLLATE_WHOLE_SECONDS: Final = 0.001  # rows of such a batch, up to which one worker makes it: rows take longer to send
AWAITED_BYTES: Final = 256_000_000  # all jobs whose records processes request together: 64 images of a megabyte each
MAX_POSITIONS: Final = 1 << 14  # positions of a job, over all block inputs: many parts take no more memory
SPAN_BYTES: Final = 4_000_000  # elements of a job of a block input: they wait in memory for the fold
MIN_PARENTS: Final = 2.0  # parents of a job of known bytes, at least: one in two jobs is evaluated twice
MAX_PARENT_BATCHES: Final = 1 << 12  # batches of a job that has whole parents: a parent may have as many rows
LARGE_ELEMENT_BYTES: Final = 1 << 24  # an element without a batch of which workers have one each ahead, not two
COPIED_BYTES: Final = 1 << 16  # arrays that are copied out of a job's memory: kept labels don't keep the images
MAX_KEPT: Final = 64  # regions of batches that the consumer keeps, each with a descriptor: further batches are copied

# -- Blocks, and the ring.

MAX_BLOCK_SECONDS: Final = 0.005  # work of a block, at most, while there are enough: scheduling it stays below 2 %
MIN_BLOCK_SECONDS: Final = 0.0003  # work of a block, at least: below it, scheduling takes the time
WHOLE_BLOCK_SECONDS: Final = 0.001  # the same, where a block makes batches and sends them: that takes longer
AWAITED_BLOCK_SECONDS: Final = 1e-9  # the same, of records that processes request: a request takes far longer
READ_BYTES: Final = 1 << 20  # rows or batches that a worker has at once for a function: a processor's second cache
SLOTS: Final = 1024  # jobs of a scheduler: with fewer, fewer loaders could share the workers of one
SLOTS_EACH: Final = 128  # jobs of one loader: the other loaders get some
BLOCKS: Final = 256  # blocks of a job: each has its own words in the job table

# -- Batches computed inline.

INLINE_SECONDS: Final = 0.001  # batches computed at once: starting them takes 20 microseconds
MAX_INLINE_SECONDS: Final = 0.01  # the same, if that makes a batch cheaper by `INLINE_GAIN`: rows of a mixture
INLINE_GAIN: Final = 0.75  # the time of a batch, against that in half as large a chunk: each doubling gains less
INLINE_BYTES: Final = 2_000_000  # batches computed at once: they share memory, and a kept batch keeps all
MAX_INLINE_BATCHES: Final = 64  # batches computed at once: a bound for batches that take no time
MAX_INLINE_ELEMENTS: Final = 2048  # the same, as objects until they are merged: more leave the processor's cache
INLINE_ROWS_PER_PART: Final = 32  # rows of a mixture's part, at least: in larger blocks a row is hardly cheaper
MAX_DIRECT_ROWS: Final = 4096  # rows whose keys are computed at once: that takes about 0.1 ms
DIRECT_BYTES: Final = 1 << 21  # records read into batches at once: with a quarter, 131 kB take a tenth more time

# -- The fold thread: its chunks, and elements that it computes itself; and messages of an isolated loader's helper.

FOLD_SECONDS: Final = 0.002  # batches that the fold passes on together: a crossing takes tens of microseconds
FOLD_BYTES: Final = 3_000_000  # the same, by size: with more, batches have left the cache before they are delivered
UNANNOUNCED_SECONDS: Final = 0.001  # after which the consumer looks for batches itself: waking it takes as long as many
TURN_SECONDS: Final = 0.01  # in which workers or the fold thread compute elements: it has several jobs of small ones
TURNS_UNTIL_RETRY: Final = 64  # of the faster of the two: trying the other one takes less than a fiftieth
TRIED_SECONDS: Final = 0.0002  # of an element, its part of the fold included, up to which the fold thread tries it
PASSED_SECONDS: Final = 0.00002  # of steps above a fold: passing a small batch to workers and back takes about as long
LEFT_AGAIN_TIMES: Final = 2.0  # that of workers, from which steps above are theirs again: a function became slow
MESSAGE_SECONDS: Final = 0.002  # work of the batches of a message: sending takes a twentieth of that
MAX_MESSAGE_BATCHES: Final = 64  # batches of a message: a bound for batches that take no time
MESSAGE_BYTES: Final[Mapping[str, int]] = {  # batches of a message, by their place: inline, they take fresh memory
    "inline": 1_000_000,
    "threads": 4_000_000,
    "processes": 4_000_000,
}
SHARED_BYTES: Final = 1_000_000  # sent without a copy from here on: to notice the return of less takes longer
# Times the bytes and batches of a job whose batches are copied into messages: a message costs as much as a job. With 4,
# the jobs would have 64 MB, of which a quarter is left for such jobs: on a busy machine these may wait for a while.
ISOLATED_TIMES: Final = 3
KEPT_MESSAGES: Final = 2  # messages kept without a warning: those of the current batch and the one before
STARVED_SECONDS: Final = 0.001  # the wait before the trainer says that it keeps memory: a loop drops a batch in it
CLOSED_SECONDS: Final = 0.5  # between two looks whether another thread closed the stream, while a helper sends nothing
LEFT_SECONDS: Final = 0.001  # between two looks whether the thread of a closed stream has stopped receiving: it is rare

# -- Crashes. A limit that is too low blames the data for kills by the system; one that is too high repeats crashes.

# After the system killed a starting process for lack of memory, the next one may survive; after a failed start, hardly.
WORKER_RESTARTS: Final = RestartPolicy(limit=10, failed_start=5, killed_start=1, prompt_restarts=3)
# Deaths after the start are counted by the stream that reads; before it, only a kill says nothing of the next process.
HELPER_RESTARTS: Final = RestartPolicy(limit=1, failed_start=1, killed_start=0)
MAX_CRASHES: Final = 3  # crashes of one block, where none showed the row
MAX_CRASHES_IN_ROWS: Final = 10  # crashes of one block, where some showed rows: the next one may prove the row
MAX_HELPER_DEATHS: Final = 3  # deaths in a row without the next batch: the last of these helpers computes it alone
STEPS_SINGLY: Final = 64  # steps that this helper computes one by one: the crashing one may be so far ahead
MAX_REPEATED: Final = 8  # attempts of workers at a job that only needs more memory: then the consumer computes it

# -- Readings and records.

STALL_SECONDS: Final = 10.0  # a wait after which the consumer logs the work: slow storage rarely takes as long
SHORT_SECONDS: Final = 20e-6  # steps above the batch that take less are sampled: the clock takes a part of that
SAMPLED_EVERY: Final = 16  # one of so many of these calls, and of reads into batches, is timed
MAX_EVENTS: Final = 1000  # events of elements, and deaths, that are kept: their counts have no bound
WASTED_ELEMENTS: Final = 10_000  # elements that filters leave out before the warning about waste
WASTED_SHARE: Final = 0.99  # of all elements: below that, an index of the filter gains little
SCANNED_BYTES: Final = 1 << 20  # of a plan, scanned for the modules that it names: they are named at its beginning

# -- The throttle of CPU-bound worker processes.

UNMEASURED_BLOCKS: Final = 4  # the first ones of a process: they import modules and open files
MEASURED_BLOCKS: Final = 32  # in the means, and before a worker is throttled: a few blocks show no rule
MAX_WAITING_SHARE: Final = 1 / 32  # of the time of blocks: where they wait longer, all workers are needed
LATE_PACES: Final = 4  # times its usual time, after which a block may be waiting, and doesn't count as computing
LATE_NANOSECONDS: Final = 1_000_000  # the same, beside that: the system's scheduler or a page fault may add so much
SHORTEST_REST_SECONDS: Final = 0.01  # between two looks at the job table: a look costs the others cache misses
LONGEST_REST_SECONDS: Final = 0.05  # the same: a block that nobody else claims waits so long

# -- The choice of workers, from a few measured elements.

NOTHING_SECONDS: Final = 0.0002  # a batch that takes less is computed inline: passing it on takes a quarter of that
HELD_SECONDS: Final = 0.001  # the same for one thread that holds the GIL: the trainer waits for the GIL as well
WORTH_SECONDS: Final = 2.0  # work in an epoch; below it, starting processes doesn't pay
WAITING_TIMES: Final = 2.0  # a row that takes more than this times its processor time waits: threads overlap waits
RELEASING_SPEEDUP: Final = 1.6  # of two threads: it is 1 where functions hold the GIL, 2 where they release it
GAINING_SPEEDUP: Final = 1.2  # of two threads, from which they are better than one, where processes can't be used
MAX_WAITING_THREADS: Final = 32  # threads for rows that wait, if there aren't more processors: storage has limits
MEASURING_SECONDS: Final = 0.2  # the measurement as a whole: the first batch waits for it
PIECE_SECONDS: Final = 0.03  # work for which threads are compared: the interpreter switches threads every 5 ms
WHOLE_BATCH_SECONDS: Final = 0.05  # rows of a batch, up to which whole batches are measured: two of them are computed
LONG_ELEMENT_SECONDS: Final = 0.5  # an element, from which two threads aren't tried: that takes as long again
MEASURED_ROWS: Final = 1024  # rows measured at once: they are in memory together
MEASURED_ROUNDS: Final = 3  # of one thread against two: the machine may be busy in one of them
UNASKED_COPY_BYTES: Final = 64_000_000  # a dataset that processes get without a request: each has a copy
