"""Shapes: what shape is each tensor, and why?

A configuration that cannot run is shown up to the step that fails, so the page follows the choices themselves.
"""

from ui import frame, shapes

frame.begin("Shapes", "what shape is each tensor, and why?", below="its steps, up to the one that fails")
frame.part("steps", shapes.steps)
frame.part("values", shapes.values)
frame.part("index_map", shapes.index_map)
