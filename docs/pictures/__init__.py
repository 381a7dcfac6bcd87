"""The pictures of the documentation, one a module.

`measure()` runs the project and returns numbers for `data/NAME.json`; `draw(data)` makes
`docs/img/NAME.svg` from them. `programs.py` has the trainings; the pictures import no TensorFlow.
"""
