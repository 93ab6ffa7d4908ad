"""Attention: who attends to whom?"""

from ui import attention, frame

frame.begin("Attention", "who attends to whom?")
frame.body(attention.page)
