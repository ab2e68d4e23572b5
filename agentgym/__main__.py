"""`python -m agentgym`, the same as `agentgym`."""

from agentgym.cli import main

main()
