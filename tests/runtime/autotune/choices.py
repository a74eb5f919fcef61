"""The choice of workers: what it measures, and how it decides."""

from penstock._runtime._autotune import Choice as Choice
from penstock._runtime._autotune import Cost as Cost
from penstock._runtime._autotune import Room as Room
from penstock._runtime._autotune import Workers as Workers
from penstock._runtime._autotune import choose_kind as choose_kind
from penstock._runtime._autotune import choose_number as choose_number
from penstock._runtime._autotune import clock as clock
from penstock._runtime._autotune import measure as measure
from penstock._runtime._autotune import obstacle as obstacle
from penstock._runtime._autotune import worth_processes as worth_processes
from penstock._runtime._autotune import worth_workers as worth_workers
from penstock._runtime._processors import usable_processors as usable_processors
