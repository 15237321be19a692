"""SQL text behind operators: scalar expressions, read into Arrow expressions."""
