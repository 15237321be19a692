"""Checks of a sink: promises one by one, and worlds of drivers that crash, hang and race. Needs no Spark."""
