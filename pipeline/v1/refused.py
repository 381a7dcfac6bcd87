# SPDX-License-Identifier: Apache-2.0
"""Names of TensorFlow 1 that have no meaning without sessions and queues, and what to write."""

_SESSION = (
    "runs a session, which the driver does not have: expected tf.estimator. Use Estimator.train, "
    "and hooks that return SessionRunArgs(tensors) from before_run."
)
_QUEUE = (
    "reads by a queue, which the driver does not have: expected a dataset. Return a "
    "tf.data.Dataset from the input_fn."
)
_READER = (
    "reads files for a queue: expected a dataset. Return tf.data.TFRecordDataset(files), or "
    "TextLineDataset, from the input_fn."
)
_SERVER = (
    "starts or places the tasks of a cluster by hand: expected TF_CONFIG. Set it, and call "
    "tf.estimator.train_and_evaluate."
)
_CONTRIB = "left TensorFlow with contrib, and gin_estimator.v1 does not have it: expected "
_TREES = (
    "was an estimator of trees: expected another library. Use scikit-learn, XGBoost, or YDF, "
    "which follows TensorFlow Decision Forests."
)
_EXPERIMENTAL = ("estimator.experimental", "contrib.estimator")
_KINDS = ("Classifier", "Regressor", "Estimator")
_COUNTS = ("true_positives", "false_positives", "true_negatives", "false_negatives")
_PROXIMAL = "ProximalGradientDescent"
_MINE = "its few lines in the program. Copy them from TensorFlow 1.15."

REFUSED = {
    **dict.fromkeys(
        (
            "Session",
            "InteractiveSession",
            "get_default_session",
            "train.MonitoredTrainingSession",
            "train.MonitoredSession",
            "train.SingularMonitoredSession",
            "train.Supervisor",
            "train.SessionManager",
            "train.ChiefSessionCreator",
            "train.WorkerSessionCreator",
            "train.SessionCreator",
            "train.basic_train_loop",
        ),
        _SESSION,
    ),
    **dict.fromkeys(
        (
            "train.string_input_producer",
            "train.input_producer",
            "train.slice_input_producer",
            "train.range_input_producer",
            "train.batch",
            "train.batch_join",
            "train.shuffle_batch",
            "train.shuffle_batch_join",
            "train.maybe_batch",
            "train.maybe_shuffle_batch",
            "train.limit_epochs",
            "train.start_queue_runners",
            "train.add_queue_runner",
            "train.QueueRunner",
            "train.Coordinator",
            "train.LooperThread",
            "FIFOQueue",
            "RandomShuffleQueue",
            "PaddingFIFOQueue",
            "PriorityQueue",
            "QueueBase",
            "queue",
        ),
        _QUEUE,
    ),
    **dict.fromkeys(
        (
            "TFRecordReader",
            "TextLineReader",
            "WholeFileReader",
            "IdentityReader",
            "FixedLengthRecordReader",
            "ReaderBase",
            "read_batch_record_features",
        ),
        _READER,
    ),
    **dict.fromkeys(
        ("train.Server", "train.replica_device_setter", "train.ClusterSpec", "distribute.Server"),
        _SERVER,
    ),
    "contrib.learn": f"{_CONTRIB}tf.estimator. Use its Estimator and train_and_evaluate.",
    "contrib.eager": "is part of TensorFlow 2: expected its names. Write tf.GradientTape, ...",
    "contrib.quantize": f"{_CONTRIB}training without it. Quantize the SavedModel by TFLite.",
    "contrib.lite": f"{_CONTRIB}tf.lite. Convert the SavedModel.",
    "contrib.tensorrt": f"{_CONTRIB}tf.experimental.tensorrt. Convert the SavedModel.",
    "contrib.seq2seq": f"{_CONTRIB}your own decoder. Write a loop over a cell.",
    "contrib.cudnn_rnn": f"{_CONTRIB}tf.nn.rnn_cell or tf.keras.layers.LSTM, which use CuDNN.",
    "contrib.boosted_trees": _TREES,
    **dict.fromkeys((f"estimator.BoostedTrees{kind}" for kind in _KINDS), _TREES),
    **dict.fromkeys(
        ("contrib.factorization", "estimator.experimental.KMeans"),
        "was an estimator of clusters: expected another library. Use KMeans of scikit-learn.",
    ),
    **dict.fromkeys(
        (f"{path}.RNN{kind}" for path in _EXPERIMENTAL for kind in _KINDS),
        "was a canned estimator: expected a model_fn. Write tf.nn.dynamic_rnn and a head of "
        "tf.contrib.estimator.",
    ),
    **dict.fromkeys(
        (f"{path}.LinearSDCA" for path in _EXPERIMENTAL),
        "was an optimizer of linear models: expected another one. Set optimizer='Ftrl'.",
    ),
    **dict.fromkeys(
        (f"{path}.InMemoryEvaluatorHook" for path in _EXPERIMENTAL),
        "evaluates in a session of the training: expected tf.estimator.train_and_evaluate. Set "
        "RunConfig(save_checkpoints_steps=...) and EvalSpec(throttle_secs=0).",
    ),
    "contrib.estimator.forward_features": (
        f"{_CONTRIB}the features among the predictions. Return them in EstimatorSpec.predictions."
    ),
    **dict.fromkeys(
        (f"estimator.{kind}_parse_example_spec" for kind in ("classifier", "regressor")),
        "was a helper: expected tf.feature_column.make_parse_example_spec(columns). Add "
        "{label_key: tf.FixedLenFeature([1], tf.int64)} to its result.",
    ),
    "estimator.canned": (
        "was private: expected its public names. Write tf.contrib.estimator.multi_class_head, "
        "binary_classification_head or regression_head for those of head."
    ),
    "contrib.predictor": (
        f"{_CONTRIB}tf.saved_model. Write predict = tf.saved_model.load(path).signatures["
        "'serving_default'], and predict(x=tf.constant(array))."
    ),
    "contrib.losses": f"{_CONTRIB}tf.losses. Write its arguments by name: their order differs.",
    "contrib.tensorboard": f"{_CONTRIB}tensorboard.plugins. Import projector from there.",
    "contrib.tpu.while_loop": f"{_CONTRIB}tf.while_loop. Write it.",
    "contrib.slim.learning": f"{_CONTRIB}tf.estimator. Return slim's loss in an EstimatorSpec.",
    "contrib.slim.evaluation": f"{_CONTRIB}tf.estimator. Use Estimator.evaluate.",
    "contrib.slim.queues": _QUEUE,
    "train.FeedFnHook": (
        "feeds placeholders, which the driver does not have: expected the values in the batches. "
        "Return them from the input_fn."
    ),
    "train.FinalOpsHook": (
        "runs operations when the session ends: expected eval_metric_ops. Return them in the "
        "EstimatorSpec, and read the result of evaluate()."
    ),
    "tools": (
        "rewrites the graph of a session: expected a SavedModel. Call "
        "Estimator.export_saved_model, and convert it by TensorFlow Lite or TF-TRT."
    ),
    **dict.fromkeys(
        ("summary.FileWriter", "summary.FileWriterCache"),
        "writes summaries of a session: expected tf.summary.scalar in the model_fn. For numbers "
        "of your own use gin_estimator.MetricWriter.",
    ),
    **dict.fromkeys(
        (
            *(f"metrics.{kind}_at_thresholds" for kind in _COUNTS),
            *("metrics.precision_at_top_k", "metrics.recall_at_top_k"),
            *("metrics.average_precision_at_k", "metrics.sparse_average_precision_at_k"),
            "metrics.sparse_precision_at_k",
        ),
        "counts in local variables, which the driver does not have: expected another metric. "
        "Write gin_estimator.numpy_metric(function, labels, predictions).",
    ),
    **dict.fromkeys(
        (f"train.{kind}Optimizer" for kind in ("AdagradDA", "ProximalAdagrad", _PROXIMAL)),
        "updates variables in a session: expected another optimizer. Use AdagradOptimizer, "
        "FtrlOptimizer, or a subclass of tf.train.Optimizer.",
    ),
    "train.warm_start": (
        "sets values in a session: expected warm_start_from. Set Estimator(warm_start_from=...), "
        "or call tf.train.init_from_checkpoint in the model_fn."
    ),
    "train.import_meta_graph": _SESSION,
    "train.export_meta_graph": _SESSION,
}  # Without an entry a name is TensorFlow's.


def reason(path: str) -> str | None:
    """Returns what a name of TensorFlow 1 was and what to write; None if it is not refused."""
    if path in REFUSED:
        return REFUSED[path]
    parent = path.rpartition(".")[0]
    while parent.startswith("contrib."):
        if parent in REFUSED:
            return REFUSED[parent]
        parent = parent.rpartition(".")[0]
    return _CONTRIB + _MINE if path.startswith("contrib.") else None
