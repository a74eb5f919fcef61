"""A pipe for nested tensors: writers send elements, one reader receives them, in whatever processes these are.

Each writer has an arena of shared memory and a Unix socket to the reader. Through the socket go small frames: where in
the arena a message lies, and what it means. The message itself never does, unless it is small.
"""

from penstock.transport._pipe._reader import TensorPipeReader as TensorPipeReader
from penstock.transport._pipe._sender import WriterCounters as WriterCounters
from penstock.transport._pipe._writer import TensorPipeWriter as TensorPipeWriter
