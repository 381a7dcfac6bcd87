"""Initial values from another run: settings, vocabularies, slots, and files of other programs."""
