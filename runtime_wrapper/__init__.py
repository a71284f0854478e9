"""The OCI runtime wrapper: from an engine's `create` to a container that has exactly its GPUs.

`main` tells the story in reading order. The modules of this package form the pipeline and import the standard
library only; `probe` looks at the machine, `operate` holds the command line and is imported by no other module.
"""
