"""SWE-bench: issues of real repositories, each in the container that its authors built."""
