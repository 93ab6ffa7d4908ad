"""Gradients: where does the gradient go, and what does this initialisation do to it?

One bench of the laboratory is shown at a time; presets set a whole experiment and choose the bench.
"""

from ui import controls, frame, laboratory, presets

frame.begin("Gradients", "where does the gradient go, and what does this initialisation do to it?")
presets.draw(presets.GRADIENT_PRESETS)
controls.choose("lab", "Look at", laboratory.WORDS)
frame.part("lab", laboratory.section)
