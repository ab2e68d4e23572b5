"""`agentgym credit bench`: how well each assigner finds the turns that mattered, measured against branching.

scores.py says what is measured, gradient.py what a token's gradient is, contestants.py who is measured and on which
columns, run.py how a run goes, picture.py and report.py how it is told.
"""
