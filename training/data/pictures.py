"""Pictures of a column as one array of 8 bits a channel; what that would cut is refused."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from training.data.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_AS_IT_IS: Final = ("L", "RGB")
_AS_GREY: Final = ("1",)
_WITH_ALPHA: Final = ("LA", "PA", "RGBA", "La", "RGBa")
_DEEP: Final = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def decode_pictures(rows: Iterable[dict[str, Any]], column: str, where: str) -> npt.NDArray[Any]:
    """Decode the pictures of a split.

    Pictures of one bit become grey values 0 and 255, palettes become colours, and an alpha channel
    without transparency is left out. A picture is turned as its EXIF data says.

    Args:
        rows: of which `column` holds `bytes` or `path`.
        column: name of the column.
        where: data set and split, for messages.

    Returns:
        uint8 `[n, channels, height, width]`.

    Raises:
        DataError: a picture is missing, broken, of more than 8 bits a channel, transparent, of
            other colours than grey and RGB, moving, or of another shape than the first.
    """
    from PIL import Image

    arrays: list[npt.NDArray[np.uint8]] = []
    for number, row in enumerate(rows):
        picture, at = row[column], f"{where}, row {number}: column {column!r}"
        if picture is None or not (picture["bytes"] or picture["path"]):
            raise DataError(f"{at} holds no picture: leave the row out")
        source = io.BytesIO(picture["bytes"]) if picture["bytes"] else picture["path"]
        try:
            with Image.open(source) as opened:
                array = _pixels(opened, at)
        except OSError as error:  # UnidentifiedImageError, too
            raise DataError(f"{at} holds no readable picture ({error}): leave it out") from error
        if arrays and array.shape != arrays[0].shape:
            raise DataError(
                f"{where}: column {column!r} holds images of several sizes or modes: row 0 has "
                f"the shape {arrays[0].shape}, row {number} {array.shape}. Resize and convert them "
                "first"
            )
        arrays.append(array)
    pixels = np.stack(arrays)
    return np.ascontiguousarray(
        pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    )


def _pixels(image: Image, at: str) -> npt.NDArray[np.uint8]:
    """One picture, `[height, width]` grey or `[height, width, 3]` colours."""
    from PIL import ImageOps

    if (frames := getattr(image, "n_frames", 1)) > 1:
        raise DataError(f"{at} holds {frames} pictures in one file: keep one of them")
    tiles: list[Any] = getattr(image, "tile", [])  # how the file stores it, such as RGB;16B
    if image.mode in _DEEP or any(";16" in str(tile[3]) for tile in tiles):
        raise DataError(
            f"{at} has more than 8 bits a channel (mode {image.mode}). Choose how to scale it to "
            "8: for 16 bits Image.fromarray((np.asarray(picture) // 257).astype('uint8'))"
        )
    if "exif" in image.info:
        image = ImageOps.exif_transpose(image)
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        _refuse_transparent(image, at)
        return np.asarray(image.convert("L" if image.mode in ("L", "LA", "La") else "RGB"))
    if image.mode in _AS_GREY:
        return np.asarray(image.convert("L"))
    if image.mode in _AS_IT_IS:
        return np.asarray(image)
    if image.mode == "P":
        return np.asarray(image.convert("RGB"))
    raise DataError(
        f"{at} has the mode {image.mode}, expected grey or RGB. Choose how to convert it: "
        "picture.convert('RGB') does so without a colour profile"
    )


def _refuse_transparent(image: Image, at: str) -> None:
    if np.asarray(image.convert("RGBA"))[..., 3].min() < 255:
        raise DataError(
            f"{at} is transparent in places, and what is below is not in the data. Put it on a "
            "background: Image.alpha_composite(Image.new('RGBA', picture.size, 'white'), "
            "picture.convert('RGBA')).convert('RGB')"
        )
