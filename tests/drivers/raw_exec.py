"""Execs a program with an environment that no dict can hold: raw_exec.py COUNT ENTRY... PROGRAM ARGUMENT..."""

import ctypes
import sys


def main(words: list[bytes]) -> None:
    count = int(words[0])
    environment, command = words[1 : count + 1], words[count + 1 :]
    vectors = [(ctypes.c_char_p * (len(items) + 1))(*items, None) for items in (command, environment)]
    ctypes.CDLL(None).execve(command[0], *vectors)
    sys.exit(126)


if __name__ == "__main__":
    main([word.encode("utf-8", "surrogateescape") for word in sys.argv[1:]])
