"""What a run is and measures, for people and for tools beside TensorBoard.

From the bottom up; a file imports only files above it:

    description  a run at its start: its parameters, its hyperparameters
    tools_hook   hands the numbers of a training to tools
    files        CsvTool and JsonLinesTool
    trackers     MlflowTool and WandbTool
"""
