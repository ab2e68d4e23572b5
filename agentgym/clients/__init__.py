"""Clients of environments: in this process, at a URL, behind other projects' protocols."""
