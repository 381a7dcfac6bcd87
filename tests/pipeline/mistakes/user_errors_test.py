"""Few lines about what failed in the user's functions."""

import pytest
import tensorflow as tf

from pipeline.contract import metrics, spec
from pipeline.mistakes import user_errors

# As TensorFlow 2.21 writes it for two replicas, shortened.
OF_TWO = """Graph execution error:

Detected at node while/Sparse defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

  File "{caller}", line 64, in call

  File "/home/me/my_model.py", line 12, in my_fn

  File "/venv/site-packages/keras/src/ops/nn.py", line 2216, in sparse

Detected at node while/Sparse defined at (most recent call last):
2 root error(s) found.
  (0) INVALID_ARGUMENT:  Received a label value of 3
\t [[{{{{node while/Sparse}}}}]]
  (1) INVALID_ARGUMENT:  Received a label value of 3
\t [[{{{{node while/Sparse}}}}]]
0 successful operations.
0 derived errors ignored. [Op:__inference_run_7]"""


def invalid(text):
    return tf.errors.InvalidArgumentError(None, None, text)


def raised(error):
    """What a step makes of it."""
    with (
        pytest.raises(user_errors.StepError) as info,
        user_errors.running(lambda: "mode 'eval', step 3", hint="Try this."),
    ):
        raise error
    return str(info.value)


def test_a_step_is_told_in_the_words_of_the_operation():
    text = OF_TWO.format(caller=user_errors._CALLER)
    assert raised(invalid(text)).splitlines() == [
        "model_fn failed in mode 'eval', step 3: InvalidArgumentError: Received a "
        "label value of 3",
        '  File "/home/me/my_model.py", line 12, in my_fn',
        "Try this.",
    ]


def test_an_input_is_told_without_the_lines_that_started_the_program():
    text = OF_TWO.replace("{{node", "IteratorGetNext {{node").format(caller="/main.py")
    assert raised(invalid(text)).splitlines() == [
        "the input failed in mode 'eval', step 3: InvalidArgumentError: Received a "
        "label value of 3",
    ]


def test_what_a_lost_task_raises_is_left_to_the_cluster():
    with (
        pytest.raises(tf.errors.UnavailableError),
        user_errors.running(lambda: "mode 'train'"),
    ):
        raise tf.errors.UnavailableError(None, None, "Socket closed")


def test_a_note_is_made_once_and_the_type_stays():
    with (
        pytest.raises(KeyError) as info,
        user_errors.noted(lambda: "model_fn outer"),
        user_errors.noted(lambda: "model_fn inner"),
    ):
        {}["x"]
    (note,) = info.value.__notes__
    assert note.startswith("This happened in model_fn inner\n")
    assert note.endswith('{}["x"]')
    assert user_errors.text_of(info.value).startswith("KeyError: 'x'\nThis happened")


def test_what_this_project_raises_needs_no_note():
    with pytest.raises(spec.SpecError) as info, user_errors.noted(lambda: "x"):
        spec.EstimatorSpec("TRAIN")
    assert user_errors.is_ours(info.value)
    assert not user_errors.is_noted(info.value)
    assert user_errors.text_of(info.value).startswith("mode is 'TRAIN'")


def test_what_python_raises_in_a_line_of_ours_is_not_ours():
    with pytest.raises(TypeError) as info:
        metrics.metric()
    assert not user_errors.is_ours(info.value)
    with pytest.raises(TypeError) as info:
        spec.EstimatorSpec("train", loss=1.0, train_op=[], regularization_losses=3)
    assert not user_errors.is_ours(info.value)


def test_what_gin_adds_is_left_out():
    def fail():
        raise ValueError("wrong\n  In call to configurable 'f' (<function f>)")

    with pytest.raises(ValueError) as info, user_errors.noted(lambda: "input_fn f"):
        fail()
    assert user_errors.text_of(info.value).startswith("ValueError: wrong\nThis happen")
