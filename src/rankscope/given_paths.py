"""Paths that people give and that are not there: why, and what to write instead."""

from __future__ import annotations

import os
import re

_ADDRESS = re.compile(r"(https?|ftp|s3|gs|gcs|az|abfss?|hf|hdfs|ssh|sftp):/+", re.IGNORECASE)
_FILE_ADDRESS = re.compile(r"file:/+", re.IGNORECASE)
_OTHER_HOST = re.compile(r"[\w.-]+@[\w.-]+:.+|[\w.-]+:[/~].*")


def not_there(path: str, *, what: str = "") -> str:
    """One line about a path that does not exist. `what` stands before it, as `the script`."""
    if not path:
        return f"the name of {what or 'a file or folder'} is empty (a variable that is not set?): write it out"
    named = f"{what} '{path}'".lstrip()
    if _FILE_ADDRESS.match(path):
        return f"'{path}' is an address, not a path: write /{_FILE_ADDRESS.sub('', path)}"
    if _ADDRESS.match(path):
        return f"'{path}' is an address, not a path: download it first, and give the file"
    if _OTHER_HOST.fullmatch(path):
        return f"'{path}' is on another machine: copy it first (scp '{path}' .), and give the copy"
    if path.startswith("~"):
        return f"{named} does not exist: the shell leaves ~ as it is between quotes; write $HOME, or no quotes"
    if os.path.isdir(path):
        return f"'{path}' is a folder: name the file in it"
    here = f" (current folder: {os.getcwd()})" if not os.path.isabs(path) else ""
    if re.search(r"[*?]", path):
        return f"no file matches '{path}'{here}"
    return f"{named} does not exist{here}"
