"""Pictures, sentences and labels as programs write them: kept whole, or refused with the reason."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.data import partition
from training.data.prf import Stream
from training.data.tables import load_images, load_sentences
from training.data.text import load_text

datasets = pytest.importorskip("datasets", reason="needs the training extra")
Image = pytest.importorskip("PIL.Image", reason="needs the training extra")

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8)
COLOURS = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


def stored(picture: Any, form: str = "png", **options: Any) -> dict[str, Any]:
    out = io.BytesIO()
    picture.save(out, form, **options)
    return {"bytes": out.getvalue(), "path": None}


def folder_of(folder: Path, inputs: list[Any], labels: list[Any] | None = None, **kind: Any) -> str:
    """A data set whose two splits are these rows."""
    labels = labels or [n % 2 for n in range(len(inputs))]
    ((name, feature),) = kind.items()
    features = {name: feature, "label": datasets.ClassLabel(num_classes=2)}
    rows = datasets.Dataset.from_dict(
        {name: inputs, "label": labels}, features=datasets.Features(features)
    )
    for split in ("train", "test"):
        rows.to_parquet(str(folder / f"{split}-0.parquet"))
    return str(folder)


def pictures(folder: Path, *rows: Any) -> str:
    return folder_of(folder, list(rows), shot=datasets.Image())


def transparent() -> Any:
    """Colours of which one pixel is transparent."""
    alpha = np.full((8, 8, 1), 255, np.uint8)
    alpha[0, 0] = 0
    return Image.fromarray(np.concatenate([COLOURS, alpha], axis=2))


def palette() -> Any:
    picture = Image.fromarray(GREY, "P")
    picture.putpalette([value for n in range(256) for value in (n, 255 - n, n // 2)])
    return picture


KEPT = [
    (Image.fromarray(GREY), "png", GREY[None]),
    (Image.fromarray(COLOURS), "png", COLOURS.transpose(2, 0, 1)),
    (Image.fromarray(GREY % 3 == 0), "png", np.where(GREY % 3 == 0, 255, 0)[None]),
    (palette(), "png", np.stack([GREY, 255 - GREY, GREY // 2])),
    (Image.fromarray(COLOURS).convert("RGBA"), "png", COLOURS.transpose(2, 0, 1)),
    (Image.fromarray(GREY).convert("LA"), "png", GREY[None]),
]


@pytest.mark.parametrize("place", range(len(KEPT)))
def test_pictures_of_eight_bits_are_kept_whole(place: int, tmp_path: Path) -> None:
    picture, form, wanted = KEPT[place]
    data = load_images(pictures(tmp_path, stored(picture, form)))
    assert data.train.inputs.dtype == np.uint8
    assert np.array_equal(data.train.inputs[0], wanted)


def deep_colours() -> dict[str, Any]:
    """A PNG of 16 bits a colour, which Pillow does not write."""
    import struct
    import zlib

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + struct.pack(">24H", *range(n, n + 24)) for n in range(8))
    head = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return {"bytes": b"\x89PNG\r\n\x1a\n" + b"".join(parts), "path": None}


DEEP = GREY.astype(np.uint16) * 1000 + 255
REFUSED = {
    "grey of 16 bits": (lambda: stored(Image.fromarray(DEEP)), r"more than 8 bits.*// 257"),
    "TIFF of 16 bits": (lambda: stored(Image.fromarray(DEEP), "tiff"), "more than 8 bits"),
    "32 bits": (lambda: stored(Image.fromarray(DEEP.astype(np.int32)), "tiff"), "more than 8"),
    "floats": (lambda: stored(Image.fromarray(GREY / np.float32(64)), "tiff"), "more than 8 bits"),
    "colours of 16 bits": (deep_colours, "more than 8 bits"),
    "CMYK": (lambda: stored(Image.fromarray(COLOURS).convert("CMYK"), "jpeg"), "the mode CMYK"),
    "LAB": (lambda: stored(Image.new("LAB", (8, 8)), "tiff"), "the mode LAB"),
    "transparent colours": (lambda: stored(transparent()), "is transparent in places.*composite"),
    "transparent palette": (lambda: stored(palette(), transparency=3), "is transparent in places"),
    "transparent grey": (
        lambda: stored(Image.fromarray(GREY), transparency=3), "is transparent in places"
    ),
    "moving": (
        lambda: stored(palette(), "gif", save_all=True, append_images=[Image.fromarray(GREY.T)]),
        "has 2 pictures in one file",
    ),
    "broken": (lambda: {"bytes": stored(palette())["bytes"][:60], "path": None}, "no readable"),
    "none": (lambda: None, "has no picture: leave the row out"),
    "other mode": (lambda: stored(Image.fromarray(COLOURS)), r"row 1 \(8, 8, 3\)"),
    "other size": (lambda: stored(Image.fromarray(GREY[:4])), r"row 1 \(4, 8\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_pictures_that_would_lose_something_are_refused(name: str, tmp_path: Path) -> None:
    make, said = REFUSED[name]
    source = pictures(tmp_path, stored(Image.fromarray(GREY)), make())
    with pytest.raises(ValueError, match=said) as told:
        load_images(source)
    assert "split train" in str(told.value)
    assert "row 1" in str(told.value)


def test_the_remedy_for_sixteen_bits_keeps_the_grey_values(tmp_path: Path) -> None:
    eight = Image.fromarray((np.asarray(Image.fromarray(DEEP)) // 257).astype("uint8"))
    data = load_images(pictures(tmp_path, stored(eight)))
    assert len(np.unique(data.train.inputs)) == 64


def test_a_picture_is_turned_as_its_exif_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn to the right
    data = load_images(pictures(tmp_path, stored(Image.fromarray(GREY), exif=exif)))
    assert np.array_equal(data.train.inputs[0, 0], np.rot90(GREY, -1))


XMP = """<?xpacket begin=""?><x:xmpmeta xmlns:x="adobe:ns:meta/">
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description
xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>"""


def turned(place: str) -> dict[str, Any]:
    """A PNG to be turned a quarter to the right, as tools other than cameras say it."""
    from PIL import PngImagePlugin

    chunks = PngImagePlugin.PngInfo()
    if place == "XMP":
        chunks.add_itxt("XML:com.adobe.xmp", XMP)
    else:
        exif = Image.Exif()
        exif[0x0112] = 6
        raw = exif.tobytes()
        chunks.add_text("Raw profile type exif", f"\nexif\n{len(raw):8}\n{raw.hex()}\n", zip=True)
    return stored(Image.fromarray(GREY), pnginfo=chunks)


@pytest.mark.parametrize("place", ["XMP", "raw profile"])
def test_a_picture_is_turned_wherever_its_orientation_stands(place: str, tmp_path: Path) -> None:
    data = load_images(pictures(tmp_path, turned(place)))
    assert np.array_equal(data.train.inputs[0, 0], np.rot90(GREY, -1))


@pytest.mark.parametrize("error", [Image.DecompressionBombError, TypeError, ValueError])
def test_whatever_a_decoder_raises_names_the_row(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pictures(tmp_path, stored(Image.fromarray(GREY)))

    def refuse(*args: object) -> None:
        raise error("odd bytes")

    monkeypatch.setattr(Image.Image, "load", refuse)
    with pytest.raises(ValueError, match=r"split train, row 0: .*no readable picture \(odd bytes"):
        load_images(source)


@pytest.mark.parametrize("missing", [-1, None])
@pytest.mark.parametrize("kind", ["pictures", "sentences"])
def test_rows_without_a_label_are_refused(kind: str, missing: int | None, tmp_path: Path) -> None:
    labels = [0, 1, missing, missing]
    if kind == "pictures":
        source = folder_of(tmp_path, [stored(Image.fromarray(GREY))] * 4, labels,
                           shot=datasets.Image())  # fmt: skip
    else:
        source = folder_of(tmp_path, ["a b"] * 4, labels, text=datasets.Value("string"))
    with pytest.raises(
        ValueError, match=r"split train: column 'label' has no label in 2 of 4 rows.*row 2.*filter"
    ):
        load_images(source) if kind == "pictures" else load_sentences(source)


def test_a_test_split_without_labels_is_refused_and_the_validation_split_serves(
    tmp_path: Path,
) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(num_classes=2)}
    )
    for split, labels in (("train", [0, 1]), ("validation", [1, 0]), ("test", [-1, -1])):
        rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": labels}, features=features)
        rows.to_parquet(str(tmp_path / f"{split}-0.parquet"))
    with pytest.raises(
        ValueError, match=r"split test: .*2 of 2 rows.*save the data without this split"
    ):
        load_sentences(str(tmp_path))
    (tmp_path / "test-0.parquet").unlink()
    assert load_sentences(str(tmp_path)).test.labels.tolist() == [1, 0]


def test_labels_are_dealt_only_if_they_are_classes() -> None:
    with pytest.raises(ValueError, match=r"a label is -1, expected 0 or more"):
        partition.label_skewed(np.array([0, 1, -1]), 2, 1.0, Stream(0, "parts"))


def test_an_empty_sentence_column_is_named(tmp_path: Path) -> None:
    source = folder_of(tmp_path, ["a", None], text=datasets.Value("string"))
    with pytest.raises(ValueError, match="split train, row 1: column 'text' is empty"):
        load_sentences(source)


def test_a_second_column_that_is_not_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features = {name: datasets.Value("string") for name in ("premise", "hypothesis")}
    features |= {"label": datasets.ClassLabel(num_classes=2)}
    rows = {"premise": ["a"], "hypothesis": ["b"], "label": [0]}
    for split in ("train", "test"):
        table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
        table.to_parquet(str(tmp_path / f"{split}-0.parquet"))
    with caplog.at_level(logging.WARNING):
        load_sentences(str(tmp_path))
    assert "reads the column 'premise' as input and does not read 'hypothesis'" in caplog.text


def test_texts_lose_their_byte_order_mark_and_other_encodings_are_refused(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_bytes("\ufeffone two\n".encode())
    assert sorted(load_text(str(tmp_path)).words) == ["<eos>", "<unk>", "one", "two"]
    for raw in ("caf\xe9 au lait\n".encode("latin-1"), "one two\n".encode("utf-16")):
        (tmp_path / "wiki.valid.tokens").write_bytes(raw)
        with pytest.raises(ValueError, match=r"wiki\.valid\.tokens: expected UTF-8 text.*iconv"):
            load_text(str(tmp_path))
