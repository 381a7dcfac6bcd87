# SPDX-License-Identifier: Apache-2.0
"""Starts the tasks of a cluster on this machine; needs no TensorFlow."""
