"""`agentgym credit bench`: how well each assigner finds the turns that mattered, measured against branching.

scores.py says what is measured, gradient.py what a token's gradient is, contestants.py who is measured and on which
columns, prompted.py what a judge is asked, run.py how a run goes, picture.py and report.py how results are shown.

`agentgym credit score`: how well signals order candidate actions whose values are known. pair_scores.py has the
figures, policy_scores.py the log-probabilities of a checkpoint.
"""
