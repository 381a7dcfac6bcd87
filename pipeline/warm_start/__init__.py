# SPDX-License-Identifier: Apache-2.0
"""Initial values from another run: settings, vocabularies, slots, and files of other programs."""
