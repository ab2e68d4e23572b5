"""`python -m agentgym`, the same as `agentgym`."""

from agentgym.cli.main import main

main()
