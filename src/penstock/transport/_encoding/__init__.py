"""Nested elements become bytes that another process reads: a description once, then a small head and memory."""

from penstock.transport._encoding._containers import register_container as register_container
from penstock.transport._encoding._cuda import MIN_SLOT_BYTES as MIN_SLOT_BYTES
from penstock.transport._encoding._cuda import DevicePlace as DevicePlace
from penstock.transport._encoding._cuda import OnDevice as OnDevice
from penstock.transport._encoding._cuda import ReaderSlot as ReaderSlot
from penstock.transport._encoding._cuda import WriterSlot as WriterSlot
from penstock.transport._encoding._decoder import LARGEST_COPIED_BYTES as LARGEST_COPIED_BYTES
from penstock.transport._encoding._decoder import Decoder as Decoder
from penstock.transport._encoding._encoder import Encoded as Encoded
from penstock.transport._encoding._encoder import Encoder as Encoder
from penstock.transport._encoding._torch_tensors import dtype_name as dtype_name
from penstock.transport._encoding._torch_tensors import is_tensor as is_tensor
from penstock.transport._encoding._torch_tensors import tensor_over as tensor_over
