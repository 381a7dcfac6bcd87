def edit(p, *pairs):
    s=open(p).read()
    for a,b in pairs:
        assert s.count(a)>=1, (p,a)
        s=s.replace(a,b,1)
    open(p,'w').write(s)
p='pipeline/contract/summaries.py'
s=open(p).read()
a=s.index("@dataclasses.dataclass(frozen=True)\nclass Kind"); b=s.index("def image(")
s=s[:a]+'''@dataclasses.dataclass(frozen=True)
class Kind:
    """The kind of a summary, the same for each batch.

    Attributes:
      name: 'image', 'text', 'histogram', 'pr_curve' or 'confusion_matrix'.
      max_rows: number of rows to keep, those with the highest `score`, or the first; None adds up
        all rows. They are counts then, the last one of the values that are left out.
      class_names: names of the classes of a confusion matrix.
    """

    name: str
    max_rows: int | None = None
    class_names: tuple[str, ...] = ()

    def kept(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns what is kept of the rows of several batches, `[rows, ...]` by name."""
        if self.max_rows is None:
            return {name: each.sum(axis=0, keepdims=True) for name, each in arrays.items()}
        order: Any = slice(None)
        if "score" in arrays:
            order = np.argsort(-arrays["score"], kind="stable")
        return {name: each[order][: self.max_rows] for name, each in arrays.items()}


@dataclasses.dataclass(frozen=True)
class Summary:
    """A summary: of one batch as tensors, or of several as arrays.

    Attributes:
      kind: its kind.
      tensors: `[rows, ...]` by name.
    """

    kind: Kind
    tensors: Mapping[str, Any]


'''+s[b:]
def r(a,b):
    global s
    assert a in s, a
    s=s.replace(a,b,1)
r('''    kind = Image(_count("image", "max_outputs", max_outputs))
    rows = {"score": _scores(highest, pixels), "pixels": pixels}
    if highest is None:
        rows = {name: tensor[:max_outputs] for name, tensor in rows.items()}
    else:
        most = tf.minimum(kind.max_outputs, tf.shape(pixels)[0])
        score, places = tf.math.top_k(rows["score"], most)
        rows = {"score": score, "pixels": tf.gather(pixels, places)}
    if pixels.dtype.is_floating:
        scaled = (tf.cast(rows["pixels"], tf.float32) - low) / (high - low)
        scaled = tf.clip_by_value(tf.where(tf.math.is_finite(scaled), scaled, 0), 0, 1)
        rows["pixels"] = tf.cast(tf.round(255 * scaled), tf.uint8)
    return Summary(kind, rows)
''','''    most, rows = _count("image", "max_outputs", max_outputs), {}
    if highest is None:
        pixels = pixels[:most]
    else:
        number = tf.minimum(most, tf.shape(pixels)[0])
        rows["score"], places = tf.math.top_k(_scores(highest), number)
        pixels = tf.gather(pixels, places)
    if pixels.dtype.is_floating:
        scaled = (tf.cast(pixels, tf.float32) - low) / (high - low)
        scaled = tf.clip_by_value(tf.where(tf.math.is_finite(scaled), scaled, 0), 0, 1)
        pixels = tf.cast(tf.round(255 * scaled), tf.uint8)
    return Summary(Kind("image", most), {**rows, "pixels": pixels})
''')
r('''    """Declares texts in Markdown: the first ones.

    Args:
      x: strings `[batch]`, or one string.
      max_outputs: number of texts.

    Raises:
      SpecError: it is not a tensor of strings, or has another shape.
    """
''','''    """Declares texts in Markdown: the first ones of strings `[batch]`, or one string."""
''')
r('''    kind = Text(_count("text", "max_outputs", max_outputs) if strings.shape.rank else 1)
    strings = tf.reshape(strings, [-1])[: kind.max_outputs]
    return Summary(kind, {"score": tf.zeros(tf.shape(strings)), "text": strings})
''','''    most = _count("text", "max_outputs", max_outputs) if strings.shape.rank else 1
    return Summary(Kind("text", most), {"text": tf.reshape(strings, [-1])[:most]})
''')
r('''    """Declares the distribution of all values of a tensor or variable.

    Values that are not finite are left out, and logged once.

    Args:
      x: tensor of numbers with at least one dimension, or a variable.

    Raises:
      SpecError: it has no numbers, or is a scalar.
    """
''','''    """Declares the distribution of all finite values of a tensor, or of a variable."""
''')
r('''    is_variable = isinstance(x, keras.Variable | tf.Variable)
    return Summary(Histogram(is_variable), {"counts": _counted(place, out + 1)})
''','''    # A variable has the same values on all replicas.
    most = 1 if isinstance(x, keras.Variable | tf.Variable) else None
    return Summary(Kind("histogram", most), {"counts": _counted(place, out + 1)})
''')
r('''      num_thresholds: number of thresholds from 0 to 1; at least 2.

    Raises:
      SpecError: the shapes differ, or the probabilities are not floats.
''','''      num_thresholds: number of thresholds from 0 to 1; at least 2.

    Returns:
      A value for `EstimatorSpec.summaries`.
''')
r('Summary(PrCurve(number),','Summary(Kind("pr_curve"),')
r('''      class_names: names of the classes; empty for their numbers.

    Raises:
      SpecError: shapes differ, or these are not class numbers, or a name is missing.
''','''      class_names: names of the classes; empty for their numbers.

    Returns:
      A value for `EstimatorSpec.summaries`.
''')
r('''    return Summary(ConfusionMatrix(names), {"counts": _counted(place, size**2 + 1)})
''','''    kind = Kind("confusion_matrix", class_names=names)
    return Summary(kind, {"counts": _counted(place, size**2 + 1)})
''')
r('''def _scores(highest: Any, pixels: tf.Tensor) -> tf.Tensor:
    """Returns a float32 score for each picture; NaN counts as the highest."""
    if highest is None:
        return tf.zeros(tf.shape(pixels)[:1])
    score''','''def _scores(highest: Any) -> tf.Tensor:
    """Returns a float32 score for each picture; NaN counts as the highest."""
    score''')
open(p,'w').write(s)

p='pipeline/hooks/summary_values.py'
s=open(p).read()
a=s.index("from ..contract.summaries import ("); b=s.index("# How TensorBoard")
s=s[:a]+"from ..contract.summaries import GROWTH, NUM_SIZES, SMALLEST, Summary\n\n"+s[b:]
r('''    return list(_WRITERS[type(summary.kind)](tag, summary.kind, summary.tensors))
''','''    return list(_WRITERS[summary.kind.name](tag, summary))
''')
r('''    return int(summary.tensors["counts"][0, -1]) if isinstance(summary.kind, Counts) else 0
''','''    counts = summary.tensors.get("counts")
    return 0 if counts is None else int(counts[0, -1])
''')
r('''def _image(tag: str, kind: Image, arrays: Mapping[str, np.ndarray]) -> Iterator[Any]:
    if len(arrays["pixels"]):
        yield _pictures(tag, arrays["pixels"])


def _text(tag: str, kind: Text, arrays: Mapping[str, np.ndarray]) -> Iterator[Any]:
    if len(arrays["text"]):
        yield _value(tag, "text", list(arrays["text"]))


def _histogram(tag: str, kind: Histogram, arrays: Mapping[str, np.ndarray]) -> Iterator[Any]:
    counts = arrays["counts"][0, :-1]
''','''def _image(tag: str, summary: Summary) -> Iterator[Any]:
    if len(pictures := summary.tensors["pixels"]):
        yield _pictures(tag, pictures)


def _text(tag: str, summary: Summary) -> Iterator[Any]:
    if len(texts := summary.tensors["text"]):
        yield _value(tag, "text", list(texts))


def _histogram(tag: str, summary: Summary) -> Iterator[Any]:
    counts = summary.tensors["counts"][0, :-1]
''')
r('''def _pr_curve(tag: str, kind: PrCurve, arrays: Mapping[str, np.ndarray]) -> Iterator[Any]:
    zeros, ones = arrays["counts"][0, :-1].reshape(2, -1)
''','''def _pr_curve(tag: str, summary: Summary) -> Iterator[Any]:
    zeros, ones = summary.tensors["counts"][0, :-1].reshape(2, -1)
''')
r('_varint(kind.num_thresholds)','_varint(len(ones))')
r('''def _confusion_matrix(
    tag: str, kind: ConfusionMatrix, arrays: Mapping[str, np.ndarray]
) -> Iterator[Any]:
    """Yields a picture, a row for each true class and dark for many, and a table."""
    size = len(kind.class_names)
    counts = arrays["counts"][0, :-1].reshape(size, size)
''','''def _confusion_matrix(tag: str, summary: Summary) -> Iterator[Any]:
    """Yields a picture, a row for each true class and dark for many, and a table."""
    size = len(names := summary.kind.class_names)
    counts = summary.tensors["counts"][0, :-1].reshape(size, size)
''')
r('_table(counts, kind.class_names)','_table(counts, names)')
a=s.index("_WRITERS = {")
s=s[:a]+'''_WRITERS = {
    "image": _image,
    "text": _text,
    "histogram": _histogram,
    "pr_curve": _pr_curve,
    "confusion_matrix": _confusion_matrix,
}
'''
s=s.replace("from collections.abc import Iterator, Mapping, Sequence","from collections.abc import Iterator, Sequence")
open(p,'w').write(s)
edit('pipeline/train/shown.py',('import Kind, Summary, Text\n','import Kind, Summary\n'),('if isinstance(kind, Text)]','if kind.name == "text"]'))

# averages
edit('pipeline/contract/averages.py',
('''from .checks import Check, boolean, check, check_fields, choice, integer, is_number
''','''from .checks import Check, boolean, check, check_fields, choice, integer, is_number
'''),
('''    def chooses(self, name: str, patterns: Sequence[str] | None = None) -> bool:
        """Returns whether a variable is averaged, by its full name.

        Args:
          name: full name, not of a variable of an optimizer.
          patterns: some of `patterns`; None for all.
        """
        patterns = self.patterns if patterns is None else patterns
        names = name, name.partition("/")[0]
        return not patterns or any(re.fullmatch(p, each) for p in patterns for each in names)
''','''    def chooses(self, name: str) -> bool:
        """Returns whether a variable is averaged, by its full name."""
        return not self.patterns or any(matches(pattern, name) for pattern in self.patterns)
'''),
('''        """Returns the weight of the current weights in the average.

        Args:
          number: float64 scalar, number of steps that count, with the new ones.
          new: float64 scalar, number of steps that the current weights count for, mostly 1.

        Returns:
          Float64 scalar; exactly 1 for the first ones.
        """
        raise NotImplementedError
''','''        """Returns the share of the current weights in the average; exactly 1 for the first.

        Args:
          number: float64 scalar, number of steps that count, with the new ones.
          new: float64 scalar, number of steps that the current weights count for, mostly 1.
        """
        raise NotImplementedError
'''),
('''def to_evaluate(weights: str | None, average: Average | None) -> tuple[str, ...]:
    """Returns which weights an evaluation measures: 'live', 'average', or both.

    Args:
      weights: argument of the caller; None for `Average.evaluate`.
      average: `RunConfig.average`.

    Raises:
      UserValueError: `weights` is none of these, or there is no average.
    """
''','''def matches(pattern: str, name: str) -> bool:
    """Returns whether an expression matches the name of a variable, or of its module."""
    return any(re.fullmatch(pattern, each) for each in (name, name.partition("/")[0]))


def to_evaluate(weights: str | None, average: Average | None) -> tuple[str, ...]:
    """Returns which weights to evaluate: those of a caller, or by `Average.evaluate`."""
'''),
('''    """Returns which weights a prediction or an export takes: 'live' or 'average'.

    Args:
      weights: argument of the caller; None for `Average.serve`.
      average: `RunConfig.average`.

    Raises:
      UserValueError: `weights` is none of these, or there is no average.
    """
''','''    """Returns which weights to predict with or to export."""
'''),
)
edit('pipeline/distribute/averages.py',
('''            if not any(self.settings.chooses(name, [pattern]) for name in self._pairs):
''','''            if not any(matches(pattern, name) for name in self._pairs):
'''),
('import AVERAGE, KINDS, Average\n','import AVERAGE, KINDS, Average, matches\n'),
('''        """Starts again if a checkpoint that was restored has not all averages.

        Args:
          saved: names in the checkpoint.
        """
''','''        """Starts again if the names in a checkpoint that was restored lack some averages."""
'''),
('''        """Counts the current weights for the steps from `before` to `after`, int64 scalars.

        In cross-replica context.

        Returns:
          A bool scalar that is computed after the update.
        """
''','''        """Counts the current weights for the steps from `before` to `after`, int64 scalars.

        In cross-replica context. The result, a bool scalar, is computed after the update.
        """
'''),
('''        number_before = self.settings.num_counted(before)
        new = self.settings.num_counted(after) - number_before
''','''        new = self.settings.num_counted(after) - self.settings.num_counted(before)
'''),
('''        """Makes the variables hold their averages in the block if `weights` is 'average'.

        All replicas must hold equal values.

        Raises:
          UserRuntimeError: they hold averages already.
        """
''','''        """Makes the variables, equal on all replicas, hold 'live' or 'average' weights."""
'''),
)
edit('pipeline/train/averaged.py',
('''    """Returns a loop on parameter servers that updates the averages after each call.

    Workers change variables while others use them: only after a call all values belong to one
    step. They count for all steps of the call.
    """
''','''    """Returns a loop on parameter servers that updates the averages after each call.

    Only then all values belong to one step. They count for all steps of the call.
    """
'''),
)
