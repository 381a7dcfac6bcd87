"""Programs of tf.estimator and the same programs on gin_estimator."""
