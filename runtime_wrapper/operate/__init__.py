"""The command line `gpulatch` and its leaves; no pipeline module imports from here."""
