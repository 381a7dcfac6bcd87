"""Searches hyperparameters: many trainings by the command, in processes of this machine."""
