"""The version of this package, also written into manifests."""

VERSION = "0.1.0"
