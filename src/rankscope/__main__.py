import sys

from rankscope.start import main

# Processes that read dumps import this file again.
if __name__ == "__main__":
    sys.exit(main())
