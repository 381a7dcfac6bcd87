"""Training on parameter servers: the life of their tasks, their input, loop and updates."""
