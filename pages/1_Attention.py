"""Attention: who attends to whom?"""

from ui import attention, frame

frame.begin("Attention", "who attends to whom?")
frame.part("headline", attention.headline)
frame.part("notices", attention.notices)
attention.view_controls()
frame.part("maps", attention.maps, first=True)
frame.part("closer_look", attention.closer_look)
