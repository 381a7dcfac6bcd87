"""What users get wrong on the command line: one row a mistake.

No row ends in a traceback: the message is all that is printed.
"""

import json
import socket

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline import main

TINY = """
import models
Estimator.model_fn = @bad_command_test.model
Estimator.modules = {'network': @bad_command_test.net, 'optimizer': @SGD}
TrainSpec.input_fn = @bad_command_test.rows
TrainSpec.max_steps = 4
EvalSpec.input_fn = @bad_command_test.rows
"""

pytestmark = pytest.mark.usefixtures("fresh_gin", "own_folder")

# Flags, words of the message, and what else is there: TF_CONFIG, a file `other.gin`.
ROWS = {
    # Flags.
    "no_gin_file": (None, ["--gin_file"]),
    "a_flag_that_is_not_there": (["--modeldir=x"], ["Did you mean: model_dir"]),
    "a_value_apart_from_its_flag": (["run"], ["unexpected argument 'run'"]),
    "a_job_that_is_not_there": (
        ["--job=test"],
        ["--job=test: value should be one of", "train_and_evaluate"],
    ),
    "an_execution_that_is_not_there": (
        ["--execution=gpu"],
        ["--execution=gpu: value should be one of", "single_host"],
    ),
    "a_value_of_a_switch": (["--list=cnn"], ["--list=cnn: this flag takes no value"]),
    "output_of_a_training": (
        ["--output=x"],
        ["--output is for --job=predict, not --job=train_and_evaluate"],
    ),
    "output_that_cannot_be_written": (
        ["--job=predict", "--model_dir=trained", "--output=no/such/p.jsonl"],
        ["--output=no/such/p.jsonl", "No such file or directory", "another file"],
    ),
    "a_first_look_at_another_job": (
        ["--job=evaluate", "--fast_dev_run"],
        ["--fast_dev_run is for --job=train_and_evaluate, not evaluate"],
    ),
    "two_first_looks": (
        ["--fast_dev_run", "--overfit_batches=2"],
        ["--fast_dev_run and --overfit_batches: give one of them"],
    ),
    "no_batches_to_overfit": (
        ["--overfit_batches=0"],
        ["--overfit_batches=0: 0 is not a positive integer"],
    ),
    "a_learning_rate_to_find_that_falls": (
        [
            "--job=find_learning_rate",
            "--gin.find_learning_rate.highest=1e-9",
            "--dry_run",
        ],
        ["find_learning_rate goes from 1e-06 to 1e-09", "the lower one first"],
    ),
    "training_from_a_checkpoint_path": (
        ["--checkpoint_path=x"],
        ["--checkpoint_path is for", "Estimator.warm_start_from = 'path'"],
    ),
    "a_job_without_its_model_dir": (
        ["--job=predict"],
        ["--job=predict needs --model_dir"],
    ),
    "devices_of_other_hosts": (
        ["--devices=GPU:0", "--execution=multi_worker"],
        ["devices is ('GPU:0',)", "execution='single_host'", "Leave devices out"],
    ),
    "devices_that_are_not_there": (["--devices=GPU:7"], ["GPU:7", "not among"]),
    "a_device_twice": (["--devices=CPU:0,CPU:0"], ["twice", "List each one once"]),
    # Checkpoints and folders.
    "evaluation_before_training": (
        ["--job=evaluate", "--model_dir=nowhere"],
        ["nowhere has no checkpoint", "--job=evaluate", "train first"],
    ),
    "prediction_before_training": (
        ["--job=predict", "--model_dir=nowhere"],
        ["nowhere has no checkpoint", "--job=predict", "train first"],
    ),
    "export_before_training": (
        ["--job=export", "--model_dir=nowhere"],
        ["nowhere has no checkpoint", "--job=export", "train first"],
    ),
    "a_checkpoint_that_is_not_there": (
        ["--job=predict", "--model_dir=trained", "--checkpoint_path=trained/4"],
        ["checkpoint_path='trained/4'", "trained/model.ckpt-4'"],
    ),
    "a_model_dir_on_a_missing_mount": (
        ["--model_dir=/proc/mnt/run"],
        ["model_dir '/proc/mnt/run' cannot be made", "mounted", "--model_dir=runs/1"],
    ),
    "a_model_dir_below_a_file": (
        ["--model_dir=tiny.gin/run"],
        ["tiny.gin/run' cannot be made", "not a directory"],
    ),
    "a_checkpoint_of_another_model": (
        ["--model_dir=trained", "--gin.bad_command_test.net.units=5", "--gin.N=8"],
        ["trained/model.ckpt-4 is not of this model", "of another shape"],
        {"gin": "N = 4\nTrainSpec.max_steps = %N"},
    ),
    # TF_CONFIG.
    "tf_config_that_is_not_json": (
        [],
        ["which is no JSON", "TF_CONFIG is \"{'cluster'", '"cluster": {"chief"'],
        {"TF_CONFIG": "{'cluster': 1}"},
    ),
    "parameter_servers_without_a_chief": (
        ["--execution=parameter_server"],
        ["parameter servers but no chief", '"chief": ["host0:2222"]'],
        {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": ("worker", 0)},
    ),
    "tf_config_of_two_for_one_host": (
        [],
        ["TF_CONFIG names 2 tasks", "--execution=multi_worker"],
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": ("worker", 0)},
    ),
    "tf_config_without_a_port": (
        ["--execution=multi_worker"],
        ["'b'", "write host:2222"],
        {"cluster": {"worker": ["b", "c"]}, "task": ("worker", 0)},
    ),
    "tf_config_with_a_taken_port": (
        ["--execution=multi_worker"],
        ["worker 0 (this process)", "port {port} is in use", "another port"],
        {
            "cluster": {"worker": ["localhost:{port}", "localhost:1"]},
            "task": ("worker", 0),
        },
    ),
    "tf_config_with_a_task_too_many": (
        ["--execution=multi_worker"],
        ['"index" in "task" is 2', "write 0 to 1, or add the address"],
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": ("worker", 2)},
    ),
    "several_workers_without_a_cluster": (
        ["--execution=multi_worker"],
        ["TF_CONFIG"],
    ),
    # gin.
    "gin_file_that_is_not_there": (
        ["--gin_file=tny.gin"],
        ["no gin file 'tny.gin'", "Did you mean tiny.gin", "Searched"],
    ),
    "gin_file_that_does_not_parse": (
        [],
        ["other.gin line 2: gin cannot read this line", "A = = 2"],
        {"gin": "# Comment\nA = = 2"},
    ),
    "gin_file_that_is_no_text": (
        [],
        ["other.gin is no gin file", "UTF-8"],
        {"gin": b"\xff\xfe\x00model"},
    ),
    "gin_file_that_is_a_folder": (["--gin_file=trained"], ["no gin file 'trained'"]),
    "a_name_that_gin_does_not_know": (
        ["--gin.TrainSpce.max_steps=3"],
        ["TrainSpce is not a known function", "Did you mean TrainSpec?"],
    ),
    "a_parameter_that_is_not_there": (
        ["--gin.RunConfig.save_checkpoint_steps=3"],
        ["no parameter 'save_checkpoint_steps'", "save_checkpoints_steps"],
    ),
    "max_steps_as_text": (
        ["--gin.TrainSpec.max_steps='100'"],
        ["TrainSpec.max_steps takes int | None, got '100'", "without quotes: 100"],
    ),
    "max_steps_of_zero": (
        ["--gin.TrainSpec.max_steps=0"],
        ["TrainSpec.max_steps is 0: write an int > 0"],
    ),
    "text_without_quotes": (
        ["--gin.RunConfig.precision=mixed_bfloat16"],
        ["mixed_bfloat16 is no Python value", "--gin.RunConfig.precision="],
    ),
    "a_choice_that_is_not_there": (
        ["--gin.RunConfig.precision='bfloat16'"],
        ["'mixed_bfloat16'", "precision is 'bfloat16'"],
    ),
    "both_intervals_of_checkpoints": (
        [],
        ["save_checkpoints_steps (5) and", "Leave one of them out"],
        {
            "gin": "RunConfig.save_checkpoints_steps = 5\n"
            "RunConfig.save_checkpoints_secs = 5"
        },
    ),
    "a_hook_that_is_a_class": (
        ["--gin.TrainSpec.hooks=[@LoggingHook]"],
        ["TrainSpec.hooks takes objects", "Write @LoggingHook() instead"],
    ),
    "hooks_that_are_no_list": (
        ["--gin.TrainSpec.hooks=@LoggingHook()"],
        ["TrainSpec.hooks", "list"],
    ),
    "an_input_fn_that_is_called": (
        ["--gin.TrainSpec.input_fn=@bad_command_test.rows()"],
        ["Write @bad_command_test.rows instead of"],
    ),
    "an_optimizer_that_is_called": (
        ["--gin.Estimator.modules={'network': @bad_command_test.net, 'opt': @SGD()}"],
        ["Write @SGD instead of @SGD()"],
    ),
    "a_module_that_nobody_takes": (
        ["--gin.Estimator.modules={'net': @bad_command_test.net, 'optimizer': @SGD}"],
        ["does not take the modules ['net']", "Add the argument or drop the module"],
    ),
    "a_metric_that_is_not_there": (
        [
            "--gin.EvalSpec.exporters=[@BestExporter()]",
            "--gin.BestExporter.metric='acuracy'",
        ],
        ["compares 'acuracy'", "it has ['accuracy', 'loss']"],
    ),
    "a_binding_that_nobody_reads": (
        ["--gin.Adam.learning_rate=0.1"],
        ["nothing reads these lines", "no job calls Adam"],
    ),
    "an_import_that_is_not_there": (
        ["--gin_param=import modles"],
        ["no module named 'modles'", "Did you mean models?"],
    ),
    "an_import_that_fails": (
        ["--gin_param=import broken"],
        ["--gin_param: import broken", "broken.py", "SyntaxError"],
    ),
    # The user's functions.
    "an_input_fn_that_refuses_its_arguments": (
        ["--gin.bad_command_test.rows.batch_size=0"],
        ["input_fn rows, mode 'train'", "batch_size 0"],
        {"code": 1},
    ),
    "an_input_of_ours_that_refuses_its_arguments": (
        [],
        ["batch_size is 0, not a positive integer: write batch_size="],
        {
            "gin": "import inputs\nTrainSpec.input_fn = @digits_input_fn\n"
            "digits_input_fn.batch_size = 0"
        },
    ),
    "a_model_fn_that_fails": (
        ["--gin.bad_command_test.model.key='imgae'"],
        ["KeyError: 'imgae'", "features {image: float32 [", "features[key]"],
        {"code": 1},
    ),
    "labels_out_of_range": (
        ["--gin.bad_command_test.net.units=1"],
        [
            "model_fn failed in mode 'train'",
            "outside the valid range of [0, 1)",
            "loss=",
        ],
        {"code": 1},
    ),
    "a_row_that_cannot_be_parsed": (
        ["--gin.bad_command_test.rows.bad_row=True"],
        ["the input failed in mode 'train'", "StringToNumberOp could not correctly"],
        {"code": 1},
    ),
    "a_loss_that_is_not_finite": (
        ["--gin.bad_command_test.model.factor=1e38"],
        ["the loss was NaN or infinite at step", "clip_norm=1.0"],
    ),
}


@gin.configurable(module="bad_command_test")
def rows(mode, batch_size: int = 2, bad_row: bool = False):
    if batch_size < 1:
        raise ValueError(f"batch_size {batch_size}")
    x = np.ones([6, 4], np.float32)
    data = tf.data.Dataset.from_tensor_slices(({"image": x}, np.arange(6) % 3))
    if bad_row:
        data = data.map(lambda x, y: (x, tf.strings.to_number("x", tf.int64) + y))
    if mode == ge.ModeKeys.PREDICT:
        data = data.map(lambda x, y: x)
    return data.repeat(None if mode == ge.ModeKeys.TRAIN else 1).batch(batch_size)


@gin.configurable(module="bad_command_test")
def net(units: int = 3):
    return keras.layers.Dense(units)


@gin.configurable(module="bad_command_test")
def model(
    features, labels, mode, network, optimizer, key: str = "image", factor: float = 1.0
):
    logits = network(features[key]) * factor
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions=logits)
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
        metrics={
            "accuracy": ge.metric(
                keras.metrics.SparseCategoricalAccuracy, labels, logits
            )
        },
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model_dir at step 4."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.gin").write_text(TINY, encoding="utf-8")
    flags = [f"--gin_file={folder}/tiny.gin", f"--model_dir={folder}/run"]
    assert main.main(["main", *flags, "--job=train"]) == 0
    return folder / "run"


@pytest.fixture
def port():
    """One that somebody listens on."""
    with socket.socket() as listening:
        listening.bind(("", 0))
        listening.listen()
        yield str(listening.getsockname()[1])


@pytest.mark.parametrize("row", ROWS)
def test_mistake(row, tmp_path, trained, port, monkeypatch, capsys):
    flags, texts, *more = ROWS[row]
    given = more[0] if more else {}
    (tmp_path / "tiny.gin").write_text(TINY, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def f(:", encoding="utf-8")
    (tmp_path / "trained").symlink_to(trained)
    files = ["--gin_file=tiny.gin"]
    if "gin" in given:
        text = given["gin"]
        text = text.encode() if isinstance(text, str) else text
        (tmp_path / "other.gin").write_bytes(text)
        files.append("--gin_file=other.gin")
    if "cluster" in given:
        kind, index = given["task"]
        task = {"type": kind, "index": index}
        config = json.dumps({"cluster": given["cluster"], "task": task})
        monkeypatch.setenv("TF_CONFIG", config.replace("{port}", port))
    elif "TF_CONFIG" in given:
        monkeypatch.setenv("TF_CONFIG", given["TF_CONFIG"])
    code = main.main(["main", *(files if flags is not None else []), *(flags or [])])
    said = capsys.readouterr().err
    assert code == given.get("code", 2), said
    message = said[said.index("error: ") :]
    for text in texts:
        assert text.replace("{port}", port) in message
    assert "Traceback" not in said
    assert "In call to configurable" not in message
    assert len(message.splitlines()) < 25
