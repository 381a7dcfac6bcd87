"""Starts the tasks of a cluster on this machine; needs no TensorFlow."""
