"""What people and programs see of a query: events, and the folder of any query, running or dead, as one read model.

The read model (`model.py`, read by `folder.py`) is what every face shows. It changes nothing in a folder.
"""
