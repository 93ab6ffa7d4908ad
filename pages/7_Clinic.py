"""Clinic: what breaks, and how would I notice?

Each mistake is run on the experiment of the sidebar, its wrong lines beside the right ones.
"""

from ui import clinic, frame

frame.begin("Clinic", "what breaks, and how would I notice?")
frame.part("clinic", clinic.clinic)
