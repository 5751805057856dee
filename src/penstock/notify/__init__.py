"""The example: a notification service whose dashboard needs live counts. `examples/notify` is this
folder; `penstock init --example notify` copies it, and the demo runs it.
"""
