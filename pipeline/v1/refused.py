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
    "contrib.gan": (
        f"{_CONTRIB}generator and discriminator in one model_fn. Write minimize(loss, "
        "var_list=...) for each, and tf.group both."
    ),
    "contrib.cudnn_rnn": f"{_CONTRIB}tf.nn.rnn_cell or tf.keras.layers.LSTM, which use CuDNN.",
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
