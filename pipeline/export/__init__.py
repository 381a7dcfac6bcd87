"""PREDICT as a SavedModel.

From the bottom up; a file imports only files above it:

    saved_model  PREDICT -> SavedModel
    exporters    when an evaluation is followed by an export
"""
