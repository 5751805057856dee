"""The change log: committed transactions on disk, in commit order, for any number of readers."""
