"""Backups of a cluster that runs: taken, checked, restored.

Where they are kept:

      manifests/ID.json        what the backup consists of; written last
      running/ID.json          a backup that is being taken
      objects/ID/...           what this backup was the first to read; later backups refer to it
"""
