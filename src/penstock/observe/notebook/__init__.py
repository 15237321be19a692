"""What a notebook shows: a query as a small panel, a stream as a graph. HTML and SVG without scripts.

Every text from outside is escaped where it is put in. May import what `observe` may; never IPython, which is asked only
if it is there already.
"""
