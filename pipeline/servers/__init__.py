# SPDX-License-Identifier: Apache-2.0
"""Training on parameter servers: the life of their tasks, their input, loop and updates."""
