"""SavedModels of PREDICT, for servers.

From the bottom up; a file imports only files above it:

    sent_names   names of tensors -> names that a signature can have
    receivers    what a server is sent, and how it becomes features
    saved_model  the PREDICT of a model_fn as a SavedModel
    exporters    Exporter and its kinds: after which evaluations to export
"""
