"""Program that runs inside a sandbox as its process 1. `program.py` sends these modules there as text.

They import the standard library and each other alone, since nothing else is there.
"""
