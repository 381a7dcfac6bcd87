"""Declares each feature of tabular data once, for readers, networks and SavedModels."""
