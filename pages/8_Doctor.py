"""Doctor: what is wrong with mine?

Three ways in: an error text, an attention module, or what other pages read (gradient norms, a checkpoint).
"""

from ui import controls, doctor, frame

frame.begin("Doctor", "what is wrong with mine?", follows=False)
controls.choose("doctor_view", "I have", doctor.VIEWS)
frame.part_alone("doctor", doctor.section)
doctor.other_entries()
