"""SavedModels of PREDICT, for servers.

From the bottom up; a file imports only files above it:

    saved_model  the PREDICT of a model_fn as a SavedModel
    exporters    Exporter and its kinds: after which evaluations to export
"""
