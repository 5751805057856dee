"""Capture and all pipelines under one supervisor, each in a process of its own."""
