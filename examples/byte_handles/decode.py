"""Parses a JPEG, JSON and compressed text from one received block, without a copy.

    python examples/byte_handles/decode.py

One block holds the three, one after the other, like a message from a socket or a record of an archive. The parsers get
slices of a handle over it, and read them in place. Needs Pillow (the `demo` extra) to make the JPEG; simplejpeg decodes
it if it is installed, otherwise Pillow.
"""

import io
import json
import zlib

import numpy as np
from PIL import Image

from penstock.transport import Bytes

try:
    import simplejpeg
except ModuleNotFoundError:
    simplejpeg = None


def received() -> tuple[bytearray, list[int]]:
    """Return a block of memory with three parts, and the end of each part."""
    rows, columns = np.indices((120, 160), dtype=np.uint8)
    picture = io.BytesIO()
    Image.fromarray(np.stack([rows, columns, rows ^ columns], axis=-1)).save(picture, "JPEG")
    label = json.dumps({"label": "stripes", "source": "generated"}).encode()
    text = zlib.compress(b"a caption of the picture; " * 40)
    parts = [picture.getvalue(), label, text]
    return bytearray(b"".join(parts)), np.cumsum([len(part) for part in parts]).tolist()


def decode(data: Bytes) -> np.ndarray:
    """Return the image of a JPEG."""
    if simplejpeg is not None:
        return simplejpeg.decode_jpeg(data)
    print("simplejpeg is not installed; Pillow decodes a copy")
    return np.asarray(Image.open(io.BytesIO(data)))


def main() -> None:
    """Decode the three parts."""
    block, (after_picture, after_label, after_text) = received()
    message = Bytes(block)
    picture, label, text = message[:after_picture], message[after_picture:after_label], message[after_label:after_text]
    print(f"picture: {decode(picture).shape} from {picture}")
    print(f"label:   {json.loads(label)} from {label}")
    print(f"text:    {len(zlib.decompress(text))} characters from {text}")
    shared = all(np.shares_memory(np.frombuffer(part, "u1"), np.frombuffer(block, "u1")) for part in (picture, text))
    print(f"the parts share the block's memory: {shared}")


if __name__ == "__main__":
    main()
