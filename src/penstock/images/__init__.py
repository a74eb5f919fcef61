"""Images decoded, cropped, resized and normalised natively, without the GIL.

A step of a dataset decodes a block of images in one call, without Python code for each pixel or line:

    ps.read(ps.sources.ImageFolder("train/"), seed=7).shuffle().random_map(
        ps.images.RandomResizedCrop(224, flip=0.5, key="bytes")
    )

Of a JPEG only the blocks of the box are decoded, by libjpeg-turbo. Other formats are decoded by Pillow, if it is
installed. Pixels differ by at most one level from those of Pillow's `crop` and `resize(..., BILINEAR)`.
"""

from penstock.images._decode import Pixels as Pixels
from penstock.images._decode import decode_crop_resize as decode_crop_resize
from penstock.images._steps import Decode as Decode
from penstock.images._steps import RandomResizedCrop as RandomResizedCrop

__all__ = ["Decode", "Pixels", "RandomResizedCrop", "decode_crop_resize"]
