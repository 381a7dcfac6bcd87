"""Judges how an input is divided: are the workers' examples disjoint, all there, even?

Where the data end, examples are counted, and compared with those of one pipeline that
has all data: an example that the data have twice may come twice. Of endless data, and
of more than can be read, the beginnings are compared, and what the pipelines are made
of: `fingerprint` tells the same data and operations, whatever their order.
"""

import collections
import itertools
from collections.abc import Iterator, Sequence

import tensorflow as tf

from pipeline.contract.spec import ModeKeys
from pipeline.feed.batch import any_batch_size
from pipeline.inspection.findings import Finding, plural
from pipeline.inspection.pipelines import Pipeline, Pipelines, is_whole, rows_of

_SHARD = (
    "write dataset.shard(input_context.num_input_pipelines, "
    "input_context.input_pipeline_id) before shuffle() and batch()"
)
# Where beginnings have this share of their examples in common, it is said.
_MUCH = 0.5
# One pipeline that repeats less than this share of its examples has few duplicates.
_FEW = 0.1


def judge(found: Pipelines, name: str, mode: str) -> list[Finding]:
    """Returns what is wrong with, or doubtful in, the division of an input.

    Args:
      found: pipelines of the input; of a single one no more is asked than that it
        yields examples.
      name: name of the input_fn, and its mode, for messages.
      mode: mode in which it was called.
    """
    findings = [*_failed(found, name), *_of_other_kinds(found, name)]
    if any(pipeline.reading is None for pipeline in (found.whole, *found.looked_at)):
        return findings
    if not len(found.whole.reading):
        text = f"{name} yields no examples: is the split empty, or a filter too strict?"
        return [*findings, Finding(text, is_certain=True)]
    if found.split.num_pipelines == 1:
        return findings
    findings += [*_empty(found, name), *_unread_files(found, name)]
    examples = list(_examples(found, name, mode))
    findings += examples
    if not any(each.is_certain for each in findings):
        findings += [*_uneven(found, name), *_shared_files(found, name)]
    return findings


def in_words(found: Pipelines) -> str:
    """Returns what was compared, for the report.

    Args:
      found: pipelines of the input, all of them without an error.
    """
    counts = [len(each.reading) for each in found.looked_at]
    if found.all_read:
        return (
            f"read whole: all {found.split.num_pipelines:,} workers, "
            f"{plural(sum(len(each.reading) for each in found.called), 'example')} of "
            f"{len(found.whole.reading):,}"
        )
    if is_whole(found.whole) and all(map(is_whole, found.looked_at)):
        return _of_some(found)
    return (
        f"read: the first {plural(max(counts), 'example')}, at most, of "
        f"{_numbers(found.looked_at)}"
    )


def _of_some(found: Pipelines) -> str:
    """Returns what workers that were read, not all of them, tell of all examples."""
    read = [each for each in found.called if is_whole(each)]
    counts = [len(each.reading) for each in read]
    there = f"{len(found.whole.reading):,} examples"
    if max(counts) > 2 * min(counts) + read[0].reading.rows:
        # Of few workers with all files a mean would count the files several times.
        return (
            f"read whole: {_numbers(read)}, which have from {min(counts):,} to "
            f"{max(counts):,} of {there}; the others may have any number"
        )
    about = round(sum(counts) / len(read) * found.split.num_pipelines)
    return (
        f"read whole: {_numbers(read)}; {found.split.num_pipelines:,} such workers "
        f"have about {about:,} of {there}"
    )


def _failed(found: Pipelines, name: str) -> Iterator[Finding]:
    failed = [each for each in found.called if each.error]
    if failed:
        text = f"{name} fails for {_numbers(failed)}: {failed[0].error}"
        yield Finding(text, is_certain=True)
    elif found.whole.error:
        yield Finding(
            f"{name} fails for one pipeline of all data, with which the workers would "
            f"be compared: {found.whole.error}"
        )


def _of_other_kinds(found: Pipelines, name: str) -> Iterator[Finding]:
    """Finds workers whose elements have other dtypes or shapes than the first's."""
    fine = [each for each in found.called if not each.error]
    for each in fine[1:]:
        first, other = (
            tf.nest.map_structure(any_batch_size, pipeline.spec)
            for pipeline in (fine[0], each)
        )
        if first != other:
            yield Finding(
                f"{name} yields {other} for worker {each.worker}, and {first} for "
                f"worker {fine[0].worker}: yield the same dtypes and shapes in all."
            )
            return


def _empty(found: Pipelines, name: str) -> Iterator[Finding]:
    """Finds workers that have no example."""
    files, number = found.whole.files, found.split.num_pipelines
    empty = [
        each
        for each in found.called
        if is_whole(each)
        and not len(each.reading)
        # One that was not read, and has no file where others have.
        or each.reading is None
        and not each.error
        and files
        and not each.files
    ]
    if not empty:
        return
    what = plural(len(found.whole.reading), "example")
    write = f"train on fewer workers, or {_SHARD}"
    if files and len(files) < number:
        what = plural(len(files), "file")
        write = (
            f"write the data to {number} files or more, or read all files in each "
            "worker, and shard what was read"
        )
    needs = ", and each worker needs a batch" if found.split.in_step else ""
    yield Finding(
        f"{name} has no examples for {_numbers(empty)} of {number}; there are "
        f"{what}{needs}: {write}.",
        is_certain=found.split.in_step,
    )


def _unread_files(found: Pipelines, name: str) -> Iterator[Finding]:
    """Finds files that no worker reads."""
    if not found.all_called or not found.whole.files:
        return
    read = {file for each in found.called for file in each.files or ()}
    left = sorted(set(found.whole.files) - read)
    if left and not any(each.error for each in found.called):
        yield Finding(
            f"{name}: {plural(len(left), 'file')} of {len(found.whole.files)} are read "
            f"by no worker, such as {left[0]}: {_SHARD}.",
            is_certain=True,
        )


def _examples(found: Pipelines, name: str, mode: str) -> Iterator[Finding]:
    """Finds examples that several workers have, or none."""
    read = [each for each in found.called if each.reading is not None]
    if not (is_whole(found.whole) and all(map(is_whole, read))):
        yield from _beginnings(found, name, mode)
        return
    there = found.whole.reading.counts
    total = sum((each.reading.counts for each in read), collections.Counter())
    # One pipeline, and each worker, may leave out the rest of a last batch.
    rest = 0 if rows_of(found.whole) is None else found.whole.reading.rows
    foreign = sum(n for example, n in total.items() if example not in there)
    again = sum((total - there).values()) - foreign
    missing = sum((there - total).values()) if found.all_read else 0
    if foreign > rest:
        yield _cannot_tell(found, name, foreign, sum(total.values()))
        return
    if all(each.reading.counts == there for each in read):
        yield Finding(
            f"{name}: each worker reads all {len(found.whole.reading):,} examples, as "
            f"if it ignored its InputContext: {_SHARD}.",
            is_certain=True,
        )
    elif again:
        none = f", and {missing:,} to none" if missing > rest else ""
        yield Finding(
            f"{name}: {plural(again, 'example')} come to several workers of "
            f"{_numbers(read)}{none}: {_SHARD}, or give shuffle() a seed, so that all "
            "workers divide one order.",
            is_certain=True,
        )
    elif missing > rest * (1 + len(read)):
        yield Finding(
            f"{name}: {missing:,} of {len(found.whole.reading):,} examples come to no "
            f"worker: {_SHARD}.",
            is_certain=True,
        )
    elif missing:
        yield Finding(
            f"{name}: {missing:,} of {len(found.whole.reading):,} examples are left "
            "out with incomplete last batches: write drop_remainder=False, or a batch "
            "size that divides each worker's examples."
        )


def _cannot_tell(found: Pipelines, name: str, foreign: int, total: int) -> Finding:
    text = (
        f"{name}: {foreign:,} of {total:,} examples are none of those that one "
        "pipeline of all data yields (random values, or data made for each worker): "
        "whether the workers' examples are disjoint cannot be told"
    )
    if _is_same_graph(found.looked_at):
        text += (
            f", and all workers' data are made alike. Unless that is meant, {_SHARD}"
        )
    return Finding(f"{text}.")


def _beginnings(found: Pipelines, name: str, mode: str) -> Iterator[Finding]:
    """Compares the beginnings of pipelines that were not read whole."""
    heads = [each.reading.digests for each in found.looked_at if len(each.reading)]
    if len(heads) < 2:
        return
    common = max(_in_common(*pair) for pair in itertools.combinations(heads, 2))
    shortest = min(map(len, heads))
    in_order = len({tuple(head[:shortest]) for head in heads}) == 1
    if _is_same_graph(found.looked_at):
        yield _same_graph(found, name, mode, common=common, in_order=in_order)
        return
    one = found.whole.reading.digests
    repeated = 1 - len(set(one)) / len(one)
    if common >= _MUCH and repeated < _FEW and len(set(heads[0])) > 1:
        yield Finding(
            f"{name}: {common:.0%} of the first examples of a worker come to another, "
            f"too, and one pipeline hardly repeats any: {_SHARD}."
        )


def _same_graph(
    found: Pipelines, name: str, mode: str, *, common: float, in_order: bool
) -> Finding:
    """Tells of workers whose data are made of the same data and operations."""
    if not common:
        return Finding(
            f"{name}: all workers' data are made of the same data and operations, as "
            "if it ignored its InputContext, and their first examples differ (random "
            f"values, or another order): unless that is meant, {_SHARD}."
        )
    order = "in the same order" if in_order else "each in an order of its own"
    distinct = len({each for p in found.looked_at for each in p.reading.digests})
    # Endless training data that each worker shuffles for itself are wasteful, and some
    # mean it. One example again and again is what benchmarks have.
    is_meant = mode == ModeKeys.TRAIN and found.whole.is_endless and not in_order
    return Finding(
        f"{name}: each worker reads the same data, {order}, as if it ignored its "
        f"InputContext: {_SHARD}.",
        is_certain=distinct > 1 and not is_meant,
    )


def _uneven(found: Pipelines, name: str) -> Iterator[Finding]:
    """Finds workers that have much more to read than others."""
    read = [each for each in found.called if is_whole(each)]
    number = found.split.num_pipelines
    by_files = [each for each in found.called if each.files]
    if len(read) > 1:
        least = min(read, key=lambda each: len(each.reading))
        most = max(read, key=lambda each: len(each.reading))
        few, many = len(least.reading), len(most.reading)
        a_step = most.reading.rows * found.split.replicas_each
        if many - few > max(a_step, many // 10):
            yield Finding(
                f"{name}: worker {least.worker} has {few:,} examples and worker "
                f"{most.worker} {many:,}, so that in a pass one waits for the other: "
                f"divide them evenly, as by a multiple of {number} files of one size."
            )
    elif by_files:
        counts = [len(each.files) for each in by_files]
        if max(counts) > min(counts) * 1.1:
            yield Finding(
                f"{name}: {len(found.whole.files):,} files for {number} workers: some "
                f"read {max(counts)}, others {min(counts)}: write a multiple of "
                f"{number} files."
            )


def _shared_files(found: Pipelines, name: str) -> Iterator[Finding]:
    """Finds files that each worker opens, of which it keeps only its part."""
    files, number = found.whole.files, found.split.num_pipelines
    if not files or any(each.files != files for each in found.looked_at):
        return
    write = f"write the data to a multiple of {number} files"
    if len(files) >= number:
        write = (
            "divide the files before they are read, files[input_context."
            "input_pipeline_id :: input_context.num_input_pipelines]"
        )
    yield Finding(
        f"{name}: {plural(len(files), 'file')} for {number} workers: each opens all of "
        f"them and keeps its part of the records, so that all data are read {number} "
        f"times: {write}."
    )


def _in_common(some: Sequence[bytes], others: Sequence[bytes]) -> float:
    """Returns the share of the smaller set that is in the other, too."""
    a, b = set(some), set(others)
    return len(a & b) / min(len(a), len(b))


def _is_same_graph(pipelines: Sequence[Pipeline]) -> bool:
    return len({each.digest for each in pipelines}) == 1


def _numbers(pipelines: Sequence[Pipeline]) -> str:
    """Returns 'workers 0, 128 and 3 more'."""
    numbers = [f"{each.worker}" for each in pipelines]
    shown = ", ".join(numbers[:3])
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    return f"worker{'s' if len(numbers) > 1 else ''} {shown}{more}"
