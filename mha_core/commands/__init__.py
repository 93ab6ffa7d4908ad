"""The commands of the command line, one file each: `add` adds its parser, `command` runs it and gives the exit code."""
