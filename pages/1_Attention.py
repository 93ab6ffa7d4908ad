"""Attention: who attends to whom?"""

from ui import attention, frame

experiment = frame.begin("Attention", "who attends to whom?")
attention.headline(experiment)
attention.explore(experiment)
