"""Programs of tf.estimator, each beside the same program moved over."""
