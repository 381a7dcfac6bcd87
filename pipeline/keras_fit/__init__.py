"""`fit` of Keras models: their compile(), their callbacks, and the model that comes back."""
