"""The page: a query as one HTML document, served on this machine or written into one file. Reads only.

The page is text, style and script without a build step; what a folder says reaches it as JSON and is shown as text.
"""
