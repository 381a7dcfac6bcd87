"""What lies in model_dir, as files.

Knows no TensorFlow objects but its file system.

From the bottom up; a file imports only files above it:

    atomic_file  small files, there as a whole or not at all
    storage      what a file system refuses, as an error that says so
    heartbeat    files that their owner renews, and their age
    claim        one training a model_dir
    end_marker   how training ended, for those who wait for it
    paths        one text a place
"""
