"""Draws pictures for summaries: with captions, side by side, and matrices of counts.

A small font lies here, as no library that draws letters is there in every installation.
"""

import functools
import math
import unicodedata
from collections.abc import Sequence

import numpy as np

# Seven rows of five pixels a letter, as two hexadecimal digits a row.
_FONT = """
0 0e11131519110e  1 040c040404040e  2 0e11010204081f  3 1f02040201110e  4 02060a121f0202
5 1f101e0101110e  6 0608101e11110e  7 1f010204080808  8 0e11110e11110e  9 0e11110f01020c
A 0e11111f111111  B 1e11111e11111e  C 0e11101010110e  D 1c12111111121c  E 1f10101e10101f
F 1f10101e101010  G 0e11101711110f  H 1111111f111111  I 0e04040404040e  J 0702020202120c
K 11121418141211  L 1010101010101f  M 111b1515111111  N 11111915131111  O 0e11111111110e
P 1e11111e101010  Q 0e11111115120d  R 1e11111e141211  S 0f10100e01011e  T 1f040404040404
U 1111111111110e  V 11111111110a04  W 1111111515150a  X 11110a040a1111  Y 1111110a040404
Z 1f01020408101f  a 00000e010f110f  b 1010161911111e  c 00000e1010110e  d 01010d1311110f
e 00000e111f100e  f 0609081c080808  g 000f11110f010e  h 10101619111111  i 04000c0404040e
j 0200060202120c  k 10101214181412  l 0c04040404040e  m 00001a15151111  n 00001619111111
o 00000e1111110e  p 00001e111e1010  q 00000d130f0101  r 00001619101010  s 00000e100e011e
t 08081c08080906  u 0000111111130d  v 00001111110a04  w 0000111115150a  x 0000110a040a11
y 000011110f010e  z 00001f0204081f  . 00000000000c0c  , 000000000c0408  : 000c0c000c0c00
- 0000001f000000  _ 0000000000001f  + 0004041f040400  = 00001f001f0000  / 00010204081000
( 02040808080402  ) 08040202020408  % 18190204081303  ? 0e110102040004  ! 04040404000004
' 0c040800000000  # 0a0a1f0a1f0a0a  & 0c12140815120d  * 0004150e150400  < 02040810080402
> 08040201020408
"""
# A letter with the space after it, and a line with the space below it.
LETTER, LINE = 6, 9
# Letters of a class name that a matrix shows at the most.
_MOST_LETTERS = 16
# Classes of a matrix whose cells hold their numbers, and of one with names beside it.
_MOST_NUMBERED, _MOST_NAMED = 64, 150
# Pixels that a picture has at the least, where there is something to read beside it.
_LEAST_SIZE = 64
# Pixels between pictures side by side.
_GAP = 6
_RIGHT, _WRONG = np.array([8, 81, 156]), np.array([165, 15, 21])


def written(text: str, scale: int = 1) -> np.ndarray:
    """Returns a line of text as pixels, bool `[7 * scale, LETTER * len * scale]`.

    Args:
      text: text; accents are left out, and a letter that the font lacks is a `?`.
      scale: pixels in place of one.
    """
    plain = unicodedata.normalize("NFKD", text)
    letters = [c for c in plain if not unicodedata.combining(c)]
    font = _font()
    glyphs = [font.get(c, font["?"]) for c in letters] or [font[" "]]
    return _scaled(np.concatenate(glyphs, 1), scale)


def captioned(picture: np.ndarray, lines: Sequence[str]) -> np.ndarray:
    """Returns a picture with lines of text below it, and enlarged where it is small.

    Args:
      picture: uint8 `[height, width, channels]`.
      lines: the lines.
    """
    factor = math.ceil(_LEAST_SIZE / max(picture.shape[:2]))
    picture = _scaled(picture, factor)
    height, width, channels = picture.shape
    wide = max([width, *(LETTER * len(line) for line in lines)])
    canvas = np.full((height + LINE * len(lines), wide, channels), 255, np.uint8)
    canvas[:height, :width] = picture
    for number, line in enumerate(lines):
        _write(canvas, height + 2 + LINE * number, 0, written(line))
    return canvas


def side_by_side(pictures: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Returns pictures of one number of channels in rows of `columns`, as one.

    Args:
      pictures: uint8 `[height, width, channels]`, in the order of reading.
      columns: pictures in a row.
    """
    columns = min(columns, len(pictures))
    high = _GAP + max(picture.shape[0] for picture in pictures)
    wide = _GAP + max(picture.shape[1] for picture in pictures)
    rows = math.ceil(len(pictures) / columns)
    channels = pictures[0].shape[2]
    canvas = np.full((rows * high, columns * wide, channels), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = number // columns * high, number % columns * wide
        canvas[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return canvas


def matrix(counts: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Returns a confusion matrix as a picture, uint8 `[height, width, 3]`.

    What is right is blue, what is wrong is red, the darker the greater its part of its
    row, and what is wrong darker than that. Each cell holds its number where there are
    64 classes at the most.

    Args:
      counts: int64 `[classes, classes]`: a row for each true class, a column for each
        predicted one.
      names: names of the classes.
    """
    size = len(counts)
    numbered, scale = size <= _MOST_NUMBERED, 2 if size <= 20 else 1
    cell = 2
    if size <= _MOST_NAMED:
        cell = LINE * scale
    if numbered:
        cell = max(cell, (len(str(counts.max())) * LETTER + 4) * scale)
    names = [_cut(name) for name in names] if size <= _MOST_NAMED else []
    margin = max([len(name) for name in names], default=0) * LETTER * scale + 4
    top = margin + LINE * 2
    title = written("rows: true, columns: predicted")
    wide = max(margin + cell * size, title.shape[1]) + 4
    canvas = np.full((top + cell * size + 4, wide, 3), 255, np.uint8)
    _write(canvas, 2, 2, title)
    parts = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    for row in range(size):
        for column in range(size):
            part = parts[row, column]
            is_right = row == column
            depth = part if is_right else np.sqrt(part)
            shade = 255 + ((_RIGHT if is_right else _WRONG) - 255) * depth
            y, x = top + row * cell, margin + column * cell
            gap = 1 if cell > 4 else 0
            canvas[y : y + cell - gap, x : x + cell - gap] = np.round(shade)
            if numbered and (counts[row, column] or row == column):
                text = written(str(counts[row, column]), scale)
                down = (cell - text.shape[0]) // 2
                right = (cell - text.shape[1]) // 2 + scale // 2
                color = 255 if depth > 0.5 else 0
                _write(canvas, y + down, x + right, text, color)
    for number, name in enumerate(names):
        text = written(name, scale)
        middle = number * cell + (cell - text.shape[0]) // 2
        _write(canvas, top + middle, margin - 2 - text.shape[1], text)
        upright = np.rot90(text) if text.shape[1] > cell else text
        left = margin + number * cell + (cell - upright.shape[1]) // 2
        _write(canvas, top - 2 - upright.shape[0], left, upright)
    return canvas


@functools.cache
def _font() -> dict[str, np.ndarray]:
    """Returns the pixels of each letter, bool `[7, LETTER]`."""
    words = _FONT.split()
    rows = {
        letter: [int(digits[i : i + 2], 16) for i in range(0, 14, 2)]
        for letter, digits in zip(words[::2], words[1::2], strict=True)
    }
    rows[" "] = [0] * 7
    shifts = np.arange(LETTER - 2, -2, -1)
    return {
        letter: np.array(
            [[s >= 0 and row >> s & 1 for s in shifts] for row in each]
        ).astype(bool)
        for letter, each in rows.items()
    }


def _scaled(pixels: np.ndarray, factor: int) -> np.ndarray:
    return pixels.repeat(factor, 0).repeat(factor, 1)


def _write(
    canvas: np.ndarray, top: int, left: int, text: np.ndarray, color: int = 0
) -> None:
    """Writes pixels of text on a canvas; what lies beside it is left out."""
    place = canvas[top : top + text.shape[0], left : left + text.shape[1]]
    place[text[: place.shape[0], : place.shape[1]]] = color


def _cut(name: str) -> str:
    most = _MOST_LETTERS
    return name if len(name) <= most else f"{name[: most - 2]}.."
