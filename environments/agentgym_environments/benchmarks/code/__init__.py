"""Programming benchmarks: one function from its docstring, judged by tests that run where its code is not."""
