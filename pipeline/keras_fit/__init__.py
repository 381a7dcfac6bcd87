# SPDX-License-Identifier: Apache-2.0
"""`fit` of Keras models: their compile(), their callbacks, and the model that comes back."""

from .compiled import CompileParts as CompileParts
from .compiled import compile_parts as compile_parts
from .compiled import compiled_spec as compiled_spec
from .model import compiled_modules as compiled_modules
