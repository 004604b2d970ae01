"""Code that runs inside the confined worker process, never in the host.

It uses the standard library only and imports late, because a worker must be ready within a few
interpreter start-ups. Nothing here is a security boundary: the operating system confines the
process, and the host checks every frame that it sends.
"""
