"""Each start that goes on says from where, in one line."""

from tests import fakes

X, Y = fakes.classification_data(32)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8)  # Four steps a pass.


def resumed(log):
    return [line for line in log() if line.startswith("train | resumed")]


def test_each_start_that_goes_on_says_from_where(tmp_path, log):
    first = fakes.make_estimator(tmp_path).train(TRAIN, max_steps=3)
    assert resumed(log) == []
    first.train(TRAIN)  # To the end of the pass.
    fakes.make_estimator(tmp_path).train(TRAIN, steps=2)
    fakes.make_estimator(tmp_path).train(TRAIN, steps=1)
    start = "train | resumed from step {0} of {1}/model.ckpt-{0} | input at {2}".format
    assert resumed(log) == [
        start(3, tmp_path, "step 3 of its pass"),
        start(4, tmp_path, "step 4 of its pass"),
        start(6, tmp_path, "step 2 of its pass"),
    ]
