"""What every input_fn promises, asked of each: mode x pipelines."""

import pytest
import tensorflow as tf

from pipeline import ModeKeys

TRAIN = list(range(23))
EVAL = list(range(100, 111))


def context(pipeline_id=0, num_pipelines=1, replicas=None):
    return tf.distribute.InputContext(
        num_input_pipelines=num_pipelines,
        input_pipeline_id=pipeline_id,
        num_replicas_in_sync=replicas or num_pipelines,
    )


def numbers(features):
    tensor = features["id"] if isinstance(features, dict) else features
    return tensor.numpy().tolist()


def batches(dataset):
    """Numbers by batch, once their labels were checked."""
    result = []
    for element in dataset:
        features, labels = element if isinstance(element, tuple) else (element, None)
        result.append(numbers(features))
        if labels is not None:
            assert labels.numpy().tolist() == [10 * n for n in result[-1]]
    return result


def flat(lists):
    return [number for one in lists for number in one]


def test_train_is_endless_shuffled_and_in_full_batches(make_input):
    dataset = make_input(ModeKeys.TRAIN, batch_size=4)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    first, second = dataset.element_spec
    assert tf.nest.flatten(first)[0].shape == second.shape == [4]
    seen = flat(batches(dataset.take(23)))
    epochs = [seen[i : i + 23] for i in range(0, 92, 23)]
    assert all(sorted(epoch) == TRAIN for epoch in epochs)
    assert TRAIN not in epochs
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_evaluation_is_one_pass_with_a_ragged_end(make_input):
    dataset = make_input(ModeKeys.EVAL, batch_size=4, num_epochs=3)
    assert isinstance(dataset.element_spec, tuple)
    seen = batches(dataset)
    assert [len(batch) for batch in seen] == [4, 4, 3]
    assert sorted(flat(seen)) == EVAL
    assert batches(dataset) == seen


@pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.PREDICT])
def test_a_tpu_gets_full_batches_in_every_mode(make_input, mode):
    dataset = make_input(mode, batch_size=4, drop_remainder=True)
    for spec in tf.nest.flatten(dataset.element_spec):
        assert spec.shape[0] == 4
    assert [len(batch) for batch in batches(dataset)] == [4, 4]


def test_prediction_has_no_labels(make_input):
    dataset = make_input(ModeKeys.PREDICT, batch_size=4)
    assert not isinstance(dataset.element_spec, tuple)
    assert sorted(flat(batches(dataset))) == EVAL


# Of three files to train on, and of one.
@pytest.mark.parametrize(
    ("mode", "num_pipelines"),
    [
        (ModeKeys.TRAIN, 2),
        (ModeKeys.TRAIN, 4),
        (ModeKeys.EVAL, 4),
        (ModeKeys.PREDICT, 2),
    ],
)
def test_pipelines_share_every_example_once(make_input, mode, num_pipelines):
    arguments = {"batch_size_per_replica": 2, "num_epochs": 1}
    parts = [
        flat(batches(make_input(mode, context(i, num_pipelines), **arguments)))
        for i in range(num_pipelines)
    ]
    assert sorted(flat(parts)) == (TRAIN if mode == ModeKeys.TRAIN else EVAL)


def test_some_of_many_pipelines_may_be_empty(make_input):
    datasets = [
        make_input(ModeKeys.EVAL, context(i, 12), batch_size=12) for i in range(12)
    ]
    assert sorted(len(batches(dataset)) for dataset in datasets) == [0] + 11 * [1]


def test_global_batch_is_divided_among_replicas(make_input):
    for pipeline_id in range(2):
        dataset = make_input(
            ModeKeys.TRAIN, context(pipeline_id, 2, replicas=4), batch_size=8
        )
        assert len(batches(dataset.take(1))[0]) == 2


def test_one_seed_is_one_order(make_input):
    def order(**arguments):
        dataset = make_input(ModeKeys.TRAIN, batch_size=5, **arguments)
        return batches(dataset.take(12))

    assert order(seed=3) == order(seed=3)
    assert order(seed=3) != order(seed=4)
    assert order() == order(seed=0)


def test_training_may_end(make_input):
    arguments = {"batch_size": 4, "num_epochs": 2}
    ragged = batches(make_input(ModeKeys.TRAIN, **arguments))
    assert sorted(flat(ragged)) == sorted(TRAIN * 2)
    assert len(ragged[-1]) == 2
    full = make_input(ModeKeys.TRAIN, drop_remainder=True, **arguments)
    assert batches(full) == ragged[:-1]


@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.EVAL])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_saved_position_goes_on_with_the_next_example(
    make_input, mode, steps, tmp_path
):
    def iterator():
        return iter(make_input(mode, context(1, 2), batch_size_per_replica=2))

    saved, restored = iterator(), iterator()
    for _ in range(steps):
        next(saved)
    path = tf.train.Checkpoint(iterator=saved).write(str(tmp_path / "position"))
    tf.train.Checkpoint(iterator=restored).read(path).assert_consumed()
    for _ in range(20 if mode == ModeKeys.TRAIN else 3 - steps):
        assert numbers(next(restored)[0]) == numbers(next(saved)[0])
