"""``python -m tiltproof`` is the same program as ``tiltproof``."""

from tiltproof.cli import main

if __name__ == "__main__":
    main()
