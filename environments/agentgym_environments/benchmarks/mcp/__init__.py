"""Tasks for the tools of any server that speaks the Model Context Protocol."""
